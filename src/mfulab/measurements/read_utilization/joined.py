"""Columns that the readings table has beyond its rows."""

from pydantic import Field

from mfulab.core import joined
from mfulab.core.joined import from_plan


class Joined(joined.Joined):
    """MFU of a load of known utilization."""

    ceiling: str | None = from_plan("Ceiling of the run's format and threads.")
    tflop_s: float | None = Field(None, description="`useful_flops` ÷ `window_s`.")
    mfu_percent: float | None = Field(None, description="`tflop_s` ÷ the peak that `mfu_basis` names.")
    mfu_basis: str | None = Field(None, description="Peak under `mfu_percent`: `spec` or `measured`.")
