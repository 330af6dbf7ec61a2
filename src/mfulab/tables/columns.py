"""Columns of the tables: their step's row, the values that the join needs of the run's config, and its results."""

from typing import Any

from mfulab.measurements.registry import TABLES
from mfulab.mfu import job as jobs
from mfulab.tables import join, trace_join, verdict

LEADING = ("hardware", "experiment", "run", "recorded", "status", "message")

# What the join gives, behind a table's row and links.
JOINED: dict[str, tuple[str, ...]] = {
    "profile": tuple(join.profile_columns({}, {}, {}, {}, None)),
    "matmul": tuple(join.matmul_columns({}, {}, None)),
    "readings": tuple(join.reading_columns({}, {}, None)),
    "traces": (*trace_join.trace_columns({}), *jobs.COLUMNS),
}
FLAGS = {"recorded", "checkpointing", "autocast", "loader_persistent", "loader_pinned"}
TEXT = {
    "experiment",
    "flops_run",
    "ceiling",
    "mode",
    "optimizer",
    "optimizer_implementation",
    "autograd",
    "attention",
    "wrapper",
    "quantisation",
    "pruning",
    "teacher",
    "input",
    "loader_source",
    "dtype",
    "format",
    "mfu_basis",
    "peak_precision",
    "mfu_note",
    "basis",
    "peak_weights",
    "mfu_reason",
    "best_basis",
    *verdict.COLUMNS,
} - {"expected_mfu_percent"}

Record = dict[str, Any]
Records = dict[str, list[Record]]


def columns(table: str) -> list[str]:
    """The columns of a final table, in order: who, then the row, then links and joined values."""
    measured = [name for name in TABLES[table].row.model_fields if name not in LEADING]
    more = [*TABLES[table].linked, *JOINED.get(table, ())]
    return [*LEADING, *measured, *(name for name in more if name not in measured)]
