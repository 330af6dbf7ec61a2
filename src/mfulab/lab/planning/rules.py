"""Names of the workflow's rules, also if another project's module prefixes them."""

from functools import cache

from mfulab.measurements.registry import MEASUREMENTS

# Rules that measure nothing. Progress does not count them, since a checkpoint adds further ones.
UNCOUNTED = {
    "all",
    "figure",
    "figures",
    "first_page",
    "page",
    "refine",
    "report",
    "rows",
    "seminar",
    "slides",
    "tables",
}
RULES = UNCOUNTED.union(MEASUREMENTS)


@cache  # called for each job
def own_name(name: str) -> str:
    """Name of a rule in this workflow: `page` for `mfulab_page`, which `use rule * from mfulab as
    mfulab_*` makes. Another project's own rules keep their names."""
    matches = [rule for rule in RULES if name == rule or name.endswith(f"_{rule}")]
    return max(matches, key=len, default=name)
