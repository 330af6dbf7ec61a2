"""Columns that the table of readings adds to the measured ones."""

from mfulab.core import columns
from mfulab.core.columns import of_link
from mfulab.core.rows import column


class Joined(columns.Joined):
    """MFU of a load of known utilization. FLOPs spent on padding do not count."""

    ceiling: str | None = of_link("The ceiling of its precision, with its conditions.")
    tflop_s: float | None = column("Useful FLOPs ÷ time.")
    mfu_percent: float | None = column("Useful FLOPs ÷ time ÷ peak by `mfu_basis`.")
    mfu_basis: str | None = column(
        "Peak that mfu_percent divides by: `spec` on a GPU, `measured` on a CPU."
    )
