"""The page's data: tables by column and details of runs, gzipped because the rows of a sweep repeat themselves."""

import base64
import gzip
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mfulab.core.files import UnreadableError, read_json
from mfulab.core.language import Texts
from mfulab.measurements.registry import TABLES
from mfulab.report import frames
from mfulab.tables import columns as declared_columns
from mfulab.tables.columns import description, fields

DRAWN = 500  # rows of a figure's CSV; the table's export has all
KEPT = {"hardware", "run", "recorded", "experiment", "commit", "time_ci_low_s", "time_ci_high_s"}


def read(tables: frames.Tables, folder: Path, text: Texts) -> dict[str, Any]:
    """The tables and the details of their runs, from details.json in `folder`; none where it cannot be read."""
    try:
        details = read_json(folder / "details.json")
    except (FileNotFoundError, UnreadableError):
        details = {}
    return {"tables": compact(tables, text), "details": details}


def as_json(data: Mapping[str, Any]) -> str:
    """The data as JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def packed(text: str) -> str:
    """Base64 of gzipped text: what no page can mistake for its own."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", errors="replace"), 6, mtime=0)).decode()


def compact(tables: frames.Tables, text: Texts) -> dict[str, Any]:
    """Tables by column, texts that repeat as numbers into a dictionary; empty tables and columns are left out."""
    compacted = {}
    for name, measurement in TABLES.items():
        table, kinds = tables[name], dict(frames.kinds(name))
        if table.empty:
            continue
        declared, main = fields(name), measurement.shown.split()
        columns, values = [], []
        for column in [*main, *(column for column in table.columns if column not in main)]:
            cells = table[column]
            if column not in main and ((cells == "") if kinds[column] is str else cells.isna()).all():
                continue
            meaning = description(measurement, declared[column]) if column in declared else ""
            named = {"name": column, "title": text.name("column", column), "description": meaning}
            entry: dict[str, Any] = {**named, "main": column in main}
            codes, distinct = pd.factorize(cells)
            if kinds[column] is str:
                entry["dictionary"] = list(distinct)
                values.append(codes.tolist())
            else:
                entry["number"] = kinds[column] is float
                known = np.array([*map(plain, distinct), None], dtype=object)  # the last is what is missing: code -1
                values.append(known[codes].tolist())
            columns.append(entry)
        compacted[name] = {"columns": columns, "values": values, "length": len(table)}
    return compacted


def drawn(rows: pd.DataFrame) -> dict[str, Any]:
    """The rows of a figure for its CSV, at most DRAWN of `all`, with the columns of a table's first view and its own.

    The tables have all columns of a run. Empty columns are left out.
    """
    known = rows.head(DRAWN).drop(columns=[name for name in rows if name in _behind()]).dropna(axis=1, how="all")
    known = known[[name for name in known if not (known[name].astype(str) == "").all()]]
    return {
        "columns": list(known),
        "rows": [[plain(value) for value in row] for row in known.astype(object).to_numpy()],
        "all": len(rows),
    }


@cache
def _behind() -> set[str]:
    """Columns of tables that are not shown at first, without those that name a run and its time's interval."""
    main = {name for each in TABLES.values() for name in each.shown.split()}
    return {name for table in TABLES for name in declared_columns.columns(table)} - main - KEPT


def plain(value: object) -> object:
    """A cell as JSON can say it: whole numbers without a fraction, what is missing or infinite as None."""
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
