"""Columns that the matmul table has beyond its rows."""

from pydantic import Field

from mfulab.core import joined
from mfulab.core.joined import from_plan


class Joined(joined.Joined):
    """Speed, and its share of what the device can do."""

    ceiling: str | None = from_plan("Ceiling of the run's format and threads.")
    tflop_s: float | None = Field(None, description="`flops` ÷ `time_s`.")
    cold_tflop_s: float | None = Field(None, description="`flops` ÷ `cold_time_s`.")
    end_to_end_tflop_s: float | None = Field(None, description="`flops` ÷ `end_to_end_s`, transfers included.")
    share_of_spec_percent: float | None = Field(None, description="`tflop_s` ÷ `peak_tflop_s`.")
    share_of_measured_percent: float | None = Field(None, description="`tflop_s` ÷ `ceiling_tflop_s`.")
    share_of_reference_percent: float | None = Field(None, description="The reference's time ÷ `time_s`.")
    arithmetic_intensity: float | None = Field(None, description="`flops` ÷ `bytes_moved`, FLOPs a byte.")
    ceiling_tflop_s: float | None = Field(None, description="Best measured matmul in the format.")
    peak_tflop_s: float | None = Field(None, description="Spec peak in the format.")
    basis: str | None = Field(None, description="The usual denominator: `spec` on a GPU, `measured` on a CPU.")
    peak_precision: str | None = Field(None, description="Format whose ceiling the speed is divided by.")
    verdict_flags: str | None = Field(None, description="JSON: reasons to doubt the row, as keys and numbers.")
