"""Columns that the matmul table adds to what was measured."""

from pydantic import Field

from mfulab.core import columns
from mfulab.core.columns import of_link


class Joined(columns.Work, columns.Joined):
    """Speed of one matmul, and its shares of peak, ceiling and reference."""

    ceiling: str | None = of_link("The ceiling of its precision, with its conditions.")
    cold_tflop_s: float | None = Field(None, description="FLOPs ÷ time with caches flushed.")
    end_to_end_tflop_s: float | None = Field(None, description="FLOPs ÷ time from NumPy arrays to a NumPy array.")
    share_of_spec_percent: float | None = Field(None, description="Speed ÷ computed peak.")
    share_of_measured_percent: float | None = Field(None, description="Speed ÷ best matmul measured on the device.")
    share_of_reference_percent: float | None = Field(None, description="Time of the reference ÷ time.")
    ceiling_tflop_s: float | None = Field(None, description="Best matmul measured in that format.")
    basis: str | None = Field(None, description="`spec` on a GPU, `measured` on a CPU: which share counts.")
    peak_precision: str | None = Field(None, description="The format whose ceiling it is divided by.")
    verdict_flags: str | None = Field(None, description="JSON: reasons to look at the row again: keys and numbers.")
