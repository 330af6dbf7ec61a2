"""The page's data: tables by column and details of runs, gzipped because the rows of a sweep repeat
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
SETTINGS = "settings"  # the column of what else sets a run apart
ADDED = {SETTINGS: str, REACH: float}  # columns that the page adds to its tables
# Columns that tables do not show at first, without those that name a run and its time's interval.
BEHIND = set(chain.from_iterable(map(fields, TABLES))) - KEPT
BEHIND.difference_update(*(measurement.shown.split() for measurement in TABLES.values()))


def read(tables: frames.Tables, folder: Path, figures: Row, text: Texts) -> Iterator[str]:
    """Yields JSON of the tables with rows, of their runs' details, if these can be read, and of the
    rows of figures."""
    try:
        details = read_json(folder / "details.json")
    except (FileNotFoundError, UnreadableError):
        details = {}
    yield '{"tables":{'
    for index, name in enumerate(name for name in TABLES if len(tables[name])):
        yield f'{"," * (index > 0)}"{name}":'
        yield from compact(name, tables[name], text)
    yield "}," + as_json({"details": details, "figures": figures})[1:]


def as_json(data: object) -> str:
    """The data as JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def packed(pieces: Iterable[str]) -> tuple[str, str]:
    """Base64 of the gzipped text, what no page can mistake for its own; and its distinct letters
    beyond ASCII."""
    chunks: list[bytes] = []
    compressor = zlib.compressobj(6, wbits=31)
    letters = set[str]()
    for piece in pieces:
        chunks.append(compressor.compress(piece.encode("utf-8", errors="replace")))
        letters.update("" if piece.isascii() else piece)
    return base64.b64encode(b"".join([*chunks, compressor.flush()])).decode(), "".join(
        sorted(letters)
    )


def compact(name: str, table: pd.DataFrame, text: Texts) -> Iterator[str]:
    """Yields JSON of a table by column, texts that repeat as numbers into a dictionary; empty
    columns are left out."""
    measurement = TABLES[name]
    kinds = frames.kinds(name) | ADDED
    declared = fields(name)
    main = measurement.shown.split()
    columns = list[Record]()
    if "run" in table and (others := settings(table, main)).any():
        table = table.assign(settings=others)
        main.insert(
            next(
                (index for index, column in enumerate(main) if column in ("hardware", "status")), 1
            ),
            SETTINGS,
        )
    yield '{"values":['
    for column in [*main, *(column for column in table.columns if column not in main)]:
        cells = table[column]
        if column not in main and ((cells == "") if kinds[column] is str else cells.isna()).all():
            continue
        codes, distinct = pd.factorize(cells)
        if kinds[column] is str:
            more: Record = {"dictionary": list(distinct)}
            words = [
                *map(str, range(len(distinct))),
                "-1",
            ]  # the last is of what is missing: code -1
        else:
            more = {"number": kinds[column] is float}
            words = [*map(as_json, map(plain, distinct)), "null"]
        yield f"{',' * bool(columns)}[{','.join(np.array(words, dtype=object)[codes])}]"
        meaning = ""
        if column in declared:
            meaning = description(measurement, declared[column])
        named = {"name": column, "title": text.name("column", column), "description": meaning}
        columns.append({**named, "main": column in main, **more})
    yield f'],"length":{len(table)},"columns":{as_json(columns)}}}'


def settings(table: pd.DataFrame, columns: Collection[str]) -> pd.Series:
    """Parts of runs' names, `key=value`, in which rows differ and that none of `columns` shows."""
    modes = table.get("mode", pd.Series("", table.index))
    shown = (*(f"{key}=" for key in columns), "timing")
    is_told = cache(lambda part: "=" not in part or part.startswith(shown))
    rows = [[part for part in run.split(",") if not is_told(part)] for run in table["run"]]
    alike = {
        part for part, count in Counter(chain.from_iterable(rows)).items() if count == len(table)
    }
    cells = [
        " ".join(part for part in parts if part not in alike and part != mode)
        for parts, mode in zip(rows, ("workload=" + modes).tolist(), strict=True)
    ]
    return pd.Series(cells, table.index, dtype="str")


def drawn(rows: pd.DataFrame) -> Record:
    """The rows of a figure for its CSV, at most DRAWN of `all`, with columns of a table's first
    view and its own."""
    hidden = BEHIND | {"impossible", "doubts", REACH}
    shown = (
        rows.head(DRAWN)
        .drop(columns=[name for name in rows if name in hidden])
        .dropna(axis=1, how="all")
    )
    shown = shown[[name for name in shown if not (shown[name].astype(str) == "").all()]]
    cells = [list(map(plain, row)) for row in shown.astype(object).to_numpy()]
    return {"columns": list(shown), "rows": cells, "all": len(rows)}


def plain(value: object) -> object:
    """A cell as JSON can say it: whole numbers without a fraction, what is missing or infinite as
    None."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
