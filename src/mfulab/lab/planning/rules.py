"""Names of the workflow's rules, also where another project's module gives each a prefix."""

from mfulab.measurements.registry import MEASUREMENTS

# Rules that measure nothing: they have no number, and a checkpoint adds to them.
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


def own_name(name: str) -> str:
    """Name of a rule as our files have it: `page` of the `mfulab_page` that `use rule * from mfulab
    as mfulab_*` makes; another project's own rules keep theirs."""
    alike = [rule for rule in RULES if name == rule or name.endswith(f"_{rule}")]
    return max(alike, key=len, default=name)
