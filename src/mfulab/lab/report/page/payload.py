"""Data of the page as JSON: tables by column and details of runs, gzipped as rows of a sweep repeat
themselves."""

import base64
import json
import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from mfulab.core.files import UnreadableError, read_json
from mfulab.core.language import Texts
from mfulab.core.parts import Record, Row
from mfulab.lab.report import frames
from mfulab.lab.report.trust import REACH
from mfulab.lab.tables.columns import description, fields
from mfulab.measurements.registry import TABLES

DRAWN = 500  # rows of a figure's CSV; the table's export has all
KEPT = {"hardware", "run", "recorded", "experiment", "commit", "time_ci_low_s", "time_ci_high_s"}
SETTINGS = "settings"  # column for parts of a run's name that no other column shows
SHARES = ("mfu_percent", "utilization_percent")  # what the page is about
ADDED = {SETTINGS: str, REACH: float}  # columns that the page adds to its tables
WORDED = ("mode", "status")  # columns whose values the catalogues have words for
# Columns that tables hide at first and that the CSV of figures omits.
BEHIND = set(chain.from_iterable(map(fields, TABLES))) - KEPT
BEHIND.difference_update(*(measurement.shown.split() for measurement in TABLES.values()))
HIDDEN = BEHIND | {"impossible", "doubts", REACH, frames.USUAL, "machine_name", "is_read"}  # in CSV


def read(tables: frames.Tables, folder: Path, figures: Row, text: Texts) -> Iterator[str]:
    """Yields the JSON of all tables with rows, of the details of their runs (if readable), and of
    the rows of figures."""
    try:
        details = read_json(folder / "details.json")
    except (FileNotFoundError, UnreadableError):
        details = {}
    with_rows = [name for name in TABLES if len(tables[name])]
    yield '{"tables":{'
    for name in with_rows:
        if name != with_rows[0]:
            yield ","
        yield f'"{name}":'
        yield from compact(name, tables[name], text)
    yield "}," + as_json({"details": details, "figures": figures})[1:]


def as_json(data: object) -> str:
    """The data as JSON."""
    return json.dumps(
        data,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
    )


def packed(pieces: Iterable[str]) -> tuple[str, str]:
    """Returns the text gzipped and encoded as base64, and its distinct non-ASCII letters."""
    chunks: list[bytes] = []
    compressor = zlib.compressobj(6, wbits=31)
    letters = set[str]()
    for piece in pieces:
        chunks.append(compressor.compress(piece.encode("utf-8", errors="replace")))
        if not piece.isascii():
            letters.update(piece)
    chunks.append(compressor.flush())
    return base64.b64encode(b"".join(chunks)).decode(), "".join(sorted(letters))


def compact(name: str, table: pd.DataFrame, text: Texts) -> Iterator[str]:
    """Yields the JSON of a table by column. Texts are stored as indices into a dictionary; empty
    columns are left out."""
    kinds = frames.kinds(name) | ADDED
    declared = fields(name)
    main = ordered(TABLES[name].shown.split())
    table = _with_settings(table, main)
    others = [column for column in table.columns if column not in main]
    columns = list[Record]()
    yield '{"values":['
    for column in [*main, *others]:
        cells = table[column]
        is_empty = cells.isna()
        if kinds[column] is str:
            is_empty = cells == ""
        if column not in main and is_empty.all():
            continue
        encoded, decoding = _encoded(cells, kinds[column])
        if columns:
            yield ","
        yield encoded
        if column in WORDED:
            words = {value: text.name(column, value) for value in decoding["dictionary"]}
            decoding["words"] = words
        meaning = ""
        if column in declared:
            meaning = description(TABLES[name], declared[column])
        columns.append(
            {
                "name": column,
                "title": text.name("column", column),
                "description": meaning,
                "main": column in main,
                **decoding,
            }
        )
    yield f'],"length":{len(table)},"columns":{as_json(columns)}}}'


def _with_settings(table: pd.DataFrame, main: list[str]) -> pd.DataFrame:
    """Adds the column SETTINGS if a row has any, and puts it before hardware and status in
    `main`."""
    if "run" not in table:
        return table
    found = settings(table, main)
    if not found.any():
        return table
    places = [main.index(column) for column in ("hardware", "status") if column in main]
    main.insert(min(places, default=1), SETTINGS)
    return table.assign(settings=found)


def ordered(main: list[str]) -> list[str]:
    """Columns with MFU and utilization right after the precision, in view on a narrow screen."""
    if "precision" not in main:
        return main
    shares = [name for name in SHARES if name in main]
    others = [name for name in main if name not in shares]
    after = others.index("precision") + 1
    return [*others[:after], *shares, *others[after:]]


def _encoded(cells: pd.Series, kind: type) -> tuple[str, Record]:
    """JSON of a column's cells, and what decodes it: the dictionary of texts, or whether numbers
    have a fraction."""
    codes, distinct = pd.factorize(cells)
    # The last word is for missing cells, whose code is -1.
    if kind is str:
        words = [*map(str, range(len(distinct))), "-1"]
        more: Record = {"dictionary": list(distinct)}
    else:
        words = [*map(as_json, map(plain, distinct)), "null"]
        more = {"number": kind is float}
    listed = ",".join(np.array(words, dtype=object)[codes])
    return f"[{listed}]", more


def settings(table: pd.DataFrame, columns: Collection[str]) -> pd.Series:
    """For each row, the parts `key=value` of its run's name in which rows differ and that none of
    `columns` shows."""
    shown = (*(f"{key}=" for key in columns), "timing")

    @cache
    def is_shown(part: str) -> bool:
        return "=" not in part or part.startswith(shown)

    rows = []
    counts = Counter[str]()
    for run in table["run"]:
        parts = [part for part in run.split(",") if not is_shown(part)]
        counts.update(parts)
        rows.append(parts)
    modes = table.get("mode", pd.Series("", table.index))
    workloads = ("workload=" + modes).tolist()
    cells = []
    for parts, plain_workload in zip(rows, workloads, strict=True):
        differing = []
        for part in parts:
            if counts[part] != len(table) and part != plain_workload:
                differing.append(part)
        cells.append(" ".join(differing))
    return pd.Series(cells, table.index, dtype="str")


def drawn(rows: pd.DataFrame) -> Record:
    """Returns the rows of a figure for its CSV, at most DRAWN, and the number of `all`. Columns
    hidden in tables are left out."""
    shown = rows.head(DRAWN)
    shown = shown[[name for name in rows if name not in HIDDEN]]
    shown = shown.dropna(axis=1, how="all")
    with_values = [name for name in shown if (shown[name].astype(str) != "").any()]
    shown = shown[with_values]
    cells = []
    for row in shown.astype(object).to_numpy():
        cells.append(list(map(plain, row)))
    return {"columns": list(shown), "rows": cells, "all": len(rows)}


def plain(value: object) -> object:
    """Converts a cell to a JSON value: whole numbers become int, missing and infinite ones None."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA:
        return None
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
