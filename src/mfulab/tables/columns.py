"""What the tables hold: their step's row, what the join needs of the run's config, and what the join gives."""

from typing import Any

from mfulab.schema.rows import ROWS
from mfulab.tables import join, verdict

TABLES = {
    "environment": "environment",
    "ceilings": "ceilings",
    "flops": "count_flops",
    "counters": "compare_counters",
    "profile": "profile_step",
    "matmul": "bench_matmul",
    "formats": "number_formats",
}
TABLE_OF = {step: table for table, step in TABLES.items()}
LEADING = ("hardware", "experiment", "run", "recorded", "status", "message")

# What a table holds besides its step's row: links to other tables and what the join needs of the run's config …
PROFILE = ("flops_run", "ceiling", "mode", "gradient_accumulation", "checkpointing", "optimizer", "autocast", "dtype")
FROM_CONFIG: dict[str, tuple[str, ...]] = {"profile": PROFILE, "matmul": ("ceiling",), "ceilings": ("format",)}
# … and what the join gives.
JOINED: dict[str, tuple[str, ...]] = {
    "profile": tuple(join.profile_columns({}, {}, {}, {}, None)),
    "matmul": tuple(join.matmul_columns({}, {}, None)),
}
FLAGS = {"recorded", "checkpointing", "autocast"}
TEXT = {
    "experiment",
    "flops_run",
    "ceiling",
    "mode",
    "optimizer",
    "dtype",
    "format",
    "mfu_basis",
    "mfu_note",
    "basis",
    *verdict.COLUMNS,
} - {"expected_mfu_percent"}

Record = dict[str, Any]
Records = dict[str, list[Record]]


def columns(table: str) -> list[str]:
    """The columns of a final table, in order: who, then the row, then links and joined values."""
    measured = [name for name in ROWS[TABLES[table]].model_fields if name not in LEADING]
    more = [*FROM_CONFIG.get(table, ()), *JOINED.get(table, ())]
    return [*LEADING, *measured, *(name for name in more if name not in measured)]
