"""Columns that the ceilings table has beyond its rows."""

from mfulab.core import joined
from mfulab.core.joined import from_plan


class Joined(joined.Joined):
    """The format of what was measured."""

    format: str | None = from_plan("Name of the format, by which the runs in it find their ceiling.")
