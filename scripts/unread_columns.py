"""Lists table columns that no figure, verdict, command or notebook reads: `python
scripts/unread_columns.py`.

Such columns can be declared by `counter_column`, which combines them into one column.
"""

import json
import re
from functools import cache
from pathlib import Path

from mfulab.core.columns import BudgetColumns, Joined
from mfulab.core.rows import COUNTERS, TimedRow, is_json
from mfulab.lab.tables import columns
from mfulab.measurements.registry import TABLES
from mfulab.mfu import ladder, three_lines

PACKAGE = Path(columns.__file__).parents[2]
NOTEBOOKS = PACKAGE.parents[1] / "notebooks"
# Code that reads the tables' files. The join is not among them: it reads the rows of runs.
READERS = (
    "lab/report",
    "lab/tables/consistency.py",
    "lab/tables/compare.py",
    "cli",
    "core/language",
)
# Columns that stay although none of them reads the file's column.
KEPT = {
    "mfu_actual_clock_percent": "MFU of the peak at the run's mean clock, for users: docs/peaks.md",
    "mfu_measured_percent": "MFU of the measured peak, for users: docs/peaks.md",
    "second_moment_zeros_percent": "the join names it in the numbers of a verdict",
    "computed_clock_mhz": "the join computes the peak at the run's mean clock from it",
}
CODE = (".py", ".js", ".html")
QUOTED = re.compile(r"\{(?:\w+[.[])?(\w+)[^}]*\}")  # names in a sentence of a catalogue
SHOWN_WHOLE = ("environment",)  # tables whose columns are all shown on the page


def unread(table: str) -> list[str]:
    """Columns of a table, except counters, whose names do not occur in any reader of tables."""
    if table in SHOWN_WHOLE:
        return []
    known = {*TimedRow.model_fields, *BudgetColumns.model_fields, *Joined.model_fields, COUNTERS}
    known.update(rung.column for rung in ladder.RUNGS)
    known.update(three_lines.PHASES_MS)
    known.update(TABLES[table].shown.split())
    found = []
    for name, field in columns.fields(table).items():
        is_asked = columns.marked(field, "config") or columns.marked(field, "link")
        is_known = name in known or name in KEPT or is_asked or is_json(field)
        if not (is_known or is_read(name) or name in _words_of_notebooks()):
            found.append(name)
    return found


def is_read(name: str) -> bool:
    """True if a column's name occurs in any reader of tables."""
    return name in _words()


@cache
def _words_of_notebooks() -> frozenset[str]:
    """Words in the code of the notebooks, which read tables as users do."""
    words = set[str]()
    for path in NOTEBOOKS.glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                words.update(re.findall(r"\w+", "".join(cell["source"])))
    return frozenset(words)


@cache
def _words() -> frozenset[str]:
    words = set[str]()
    for reader in READERS:
        readable = PACKAGE / reader
        for path in readable.rglob("*") if readable.is_dir() else [readable]:
            if path.suffix in CODE:
                words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
            elif path.suffix == ".yaml":
                words.update(QUOTED.findall(path.read_text(encoding="utf-8")))
    return frozenset(words)


if __name__ == "__main__":
    for table in TABLES:
        counters = len(columns.counters(table))
        print(f"{table}: {len(columns.columns(table))} columns, {counters} counters")
        print("  unread:", *unread(table))
