"""Column that the table of ceilings adds to the measured ones."""

from mfulab.core import columns
from mfulab.core.columns import of_link


class Joined(columns.Joined):
    """Number format that a ceiling belongs to."""

    format: str | None = of_link(
        "The number format that matmuls use: of the config's dtype, and TF32."
    )
