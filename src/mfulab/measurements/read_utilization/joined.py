"""Columns that the table of readings adds to what was measured."""

from pydantic import Field

from mfulab.core import columns
from mfulab.core.columns import of_link


class Joined(columns.Joined):
    """MFU of a load of known utilization; FLOPs of padding are no model's."""

    ceiling: str | None = of_link("The ceiling of its precision, with its conditions.")
    tflop_s: float | None = Field(None, description="Useful FLOPs ÷ time.")
    mfu_percent: float | None = Field(None, description="Useful FLOPs ÷ time ÷ peak by `mfu_basis`.")
    mfu_basis: str | None = Field(None, description="`spec` on a GPU, `measured` on a CPU.")
