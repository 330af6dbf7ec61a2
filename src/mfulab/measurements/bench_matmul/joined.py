"""Columns that the matmul table adds to the measured ones."""

from mfulab.core import columns
from mfulab.core.columns import of_link
from mfulab.core.rows import column, counter_column, json_column


class Joined(columns.WorkColumns, columns.Joined):
    """Speed of one matmul, and its percentages of peak, ceiling and reference."""

    ceiling: str | None = of_link("The ceiling of its precision, with its conditions.")
    cold_tflop_s: float | None = counter_column("FLOPs ÷ time with caches flushed.")
    burst_tflop_s: float | None = counter_column("FLOPs ÷ burst_time_s.")
    end_to_end_tflop_s: float | None = counter_column("FLOPs ÷ end_to_end_s.")
    share_of_spec_percent: float | None = counter_column("Speed ÷ computed peak.")
    share_of_measured_percent: float | None = column("Speed ÷ best matmul measured on the device.")
    share_of_reference_percent: float | None = column("Time of the reference ÷ time.")
    ceiling_tflop_s: float | None = column("Best matmul measured in the format of peak_precision.")
    basis: str | None = column("Share that counts: `spec` on a GPU, `measured` on a CPU.")
    peak_precision: str | None = column("Number format whose ceiling the speed is divided by.")
    verdict_flags: str | None = json_column("reasons to look at the row again: keys and numbers.")
