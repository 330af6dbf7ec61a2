"""Lists columns of the tables that no figure, verdict or command reads: `python scripts/unread_columns.py`.
They may be declared by `counter_column`, which makes one column of them."""

import re
from functools import cache
from pathlib import Path

from mfulab.core.columns import BudgetColumns, Joined
from mfulab.core.rows import COUNTERS, TimedRow, is_json
from mfulab.lab.tables import columns
from mfulab.measurements.registry import TABLES
from mfulab.mfu import ladder

PACKAGE = Path(columns.__file__).parents[2]
# What reads the tables' files; the join before reads the runs' own rows.
READERS = (
    "lab/report",
    "lab/tables/consistency.py",
    "lab/tables/compare.py",
    "cli",
    "core/language",
)
CODE = (".py", ".js", ".html")
QUOTED = re.compile(r"\{(?:\w+[.[])?(\w+)[^}]*\}")  # names in a sentence of a catalogue
SHOWN_WHOLE = ("environment",)  # tables of which the page shows every column


def unread(table: str) -> list[str]:
    """Columns of a table, counters left out, whose names stand in nothing that reads tables."""
    if table in SHOWN_WHOLE:
        return []
    known = {*TimedRow.model_fields, *BudgetColumns.model_fields, *Joined.model_fields, COUNTERS}
    known.update(rung.column for rung in ladder.RUNGS)
    known.update(TABLES[table].shown.split())
    found = []
    for name, field in columns.fields(table).items():
        is_asked = columns.marked(field, "config") or columns.marked(field, "link")
        if name not in known and not is_asked and not is_json(field) and not is_read(name):
            found.append(name)
    return found


def is_read(name: str) -> bool:
    """True if a column's name is a word of what reads tables."""
    return name in _words()


@cache
def _words() -> frozenset[str]:
    words = set[str]()
    for reader in READERS:
        place = PACKAGE / reader
        for path in place.rglob("*") if place.is_dir() else [place]:
            if path.suffix in CODE:
                words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
            elif path.suffix == ".yaml":
                words.update(QUOTED.findall(path.read_text(encoding="utf-8")))
    return frozenset(words)


if __name__ == "__main__":
    for each in TABLES:
        held = len(columns.counters(each))
        print(f"{each}: {len(columns.columns(each))} columns, {held} counters")
        print("  unread:", *unread(each))
