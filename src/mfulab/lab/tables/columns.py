"""Columns of the tables: the fields of each measurement's `Row`, then those that its `Joined`
adds."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import get_args

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from mfulab.core.columns import Rank
from mfulab.core.files import read_csv
from mfulab.core.json_text import parse_json
from mfulab.core.measurement import Measurement
from mfulab.core.parts import Record, leave_out, pick_all
from mfulab.core.rows import COUNTERS, json_column
from mfulab.core.said import Said
from mfulab.measurements.registry import TABLES

LEADING = ("hardware", "experiment", "run", "recorded", "status", "message")
# Columns of seminar.csv; `other_columns.csv` says what each is.
SEMINAR = (
    "source",
    "place",
    "case",
    "printed",
    "formula",
    "value",
    "answer",
    "agrees",
    "note",
    "key",
    "values",
)
# By the ending of a column's name; the first match counts.
UNITS = {
    "_tflop_s": "10¹² FLOP/s",
    "_gb_s": "10⁹ byte/s",
    "_per_s": "1/s",
    "_per_j": "1/J",
    "_ms": "ms",
    "_s": "s",
    "_percent": "%",
    "_bytes": "byte",
    "_flops": "FLOP",
    "_mhz": "MHz",
    "_w": "W",
    "_j": "J",
    "_c": "°C",
    "_mb": "MiB",
    "_points": "percentage points",
}
TYPES = {bool: "true or false", int: "integer", float: "number", str: "text"}

Records = dict[str, list[Record]]


class CellError(ValueError):
    """A cell or row of a table that cannot be valid; `said` is the sentence that says why."""

    def __init__(self, said: Said) -> None:
        self.said = said
        super().__init__(str(said))


class Column(BaseModel):
    """A line of columns.csv, the data dictionary of the tables."""

    table: str = Field(description="File in results/tables/, without its ending.")
    column: str = Field(description="Name of the column in the file's first line.")
    type: str = Field(
        description="Text, integer, number, true or false; an empty cell was not measured."
    )
    unit: str = Field(description="Unit of a quantity; empty for others.")
    source: str = Field(
        description="`row`: measured; `config GROUP.KEY`: asked for; `joined`: computed of several rows;"
        " `counters`: a key of that column."
    )
    description: str = Field(description="Meaning of the column.")


def fields(table: str) -> dict[str, FieldInfo]:
    """Returns the columns of a table and their declarations, in order: identification, row, joined.
    Values that nothing reads share one column, `counters`."""
    declared = _declared(table)
    leading = pick_all(declared, LEADING)
    shown = {}
    for name, field in declared.items():
        if not marked(field, "counter"):
            shown[name] = field
    if len(shown) < len(declared):
        shown[COUNTERS] = json_column("what nothing here reads: name → value, as columns.csv says.")
    return {**leading, **shown}


def counters(table: str) -> dict[str, FieldInfo]:
    """Returns the declarations of the values that a table keeps as keys of its column
    `counters`."""
    declared = _declared(table)
    return {name: field for name, field in declared.items() if marked(field, "counter")}


def _declared(table: str) -> dict[str, FieldInfo]:
    row = TABLES[table].row.model_fields
    joined = TABLES[table].joined.model_fields
    return {**row, **leave_out(joined, row)}


def written(table: str, rows: Iterable[Record]) -> Iterator[Record]:
    """Yields rows as a table's file holds them: counters in one column of JSON, without empty
    values."""
    names = counters(table)
    for row in rows:
        values = {}
        for name in names:
            if _has_value(row.get(name)):
                values[name] = row[name]
        cell = json.dumps(values, ensure_ascii=False) if values else None
        yield {**row, COUNTERS: cell}


def _has_value(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value not in (None, "")


def with_counters(cells: Mapping[str, str]) -> dict[str, str]:
    """Returns a line's cells with one more cell for each counter. Raises CellError if the column
    `counters` is not a JSON object."""
    values = parse_json(cells.get(COUNTERS) or "{}")
    if not isinstance(values, dict):
        raise CellError(Said("cell_no_object", cell=COUNTERS, begins=cells[COUNTERS][:40]))
    return {**cells, **{name: str(value) for name, value in values.items()}}


def columns(table: str) -> list[str]:
    """Names of the columns of a final table, in order."""
    return list(fields(table))


def marked(field: FieldInfo, mark: str) -> str:
    """Value of a mark in a column's declaration, as text: the config path for `config`, `True` for
    `link`. Empty if the column lacks the mark."""
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra.get(mark) or "")
    return ""


def kept(measurement: Measurement) -> dict[str, FieldInfo]:
    """Columns of config values and links. Recordings keep these; all other joined columns are
    recomputed."""
    joined = measurement.joined.model_fields.items()
    found = {}
    for name, field in joined:
        if marked(field, "config") or marked(field, "link"):
            found[name] = field
    return found


def computed(measurement: Measurement) -> list[str]:
    """Names of the joined columns that are computed: not identification, config values or links."""
    names = {*LEADING, *kept(measurement), *measurement.row.model_fields}
    return [name for name in measurement.joined.model_fields if name not in names]


def kind(field: FieldInfo) -> type:
    """The type of a column's cells: bool, int, float or str."""
    for type_ in (bool, float, int):
        if type_ in _types(field.annotation):
            return type_
    return str


def _types(annotation: object) -> set[object]:
    inner = set(get_args(annotation)) - {NoneType}
    if inner:
        return set().union(*map(_types, inner))
    return {annotation}


def description(measurement: Measurement, field: FieldInfo) -> str:
    """Meaning of a column: its own description, or that of the config key that it shows."""
    if path := marked(field, "config"):
        group, _, key = path.partition(".")
        field = measurement.config.model_fields[group].annotation.model_fields[key]  # type: ignore[union-attr]
    return field.description or ""


def dictionary() -> Iterator[Column]:
    """Yields the lines of columns.csv, table by table. The documentation and the page show them
    too."""
    for table, measurement in TABLES.items():
        for name, field in fields(table).items():
            path = marked(field, "config")
            if path:
                source = f"config {path}"
            elif name in measurement.row.model_fields:
                source = "row"
            else:
                source = "joined"
            yield _column(table, name, TYPES[kind(field)], source, description(measurement, field))
        for name, field in counters(table).items():
            yield _column(table, name, TYPES[kind(field)], COUNTERS, field.description or "")
    identification = pick_all(fields("profile"), LEADING)
    others = {
        "ranks": {**identification, **Rank.model_fields},
        "columns": Column.model_fields,
    }
    for table, declared in others.items():
        for name, field in declared.items():
            yield _column(table, name, TYPES[kind(field)], "joined", field.description or "")
    for line in read_csv(Path(__file__).with_name("other_columns.csv")):
        yield _column(line["table"], line["column"], line["type"], "joined", line["description"])


def _column(table: str, name: str, type_: str, source: str, meaning: str) -> Column:
    unit = ""
    if type_ in (TYPES[int], TYPES[float]):
        unit = _unit(name)
    return Column(
        table=table, column=name, type=type_, unit=unit, source=source, description=meaning
    )


def _unit(column: str) -> str:
    """Unit in the name of a column; empty if the name has none."""
    if column == "flops":
        return "FLOP"
    for ending, unit in UNITS.items():
        if column.endswith(ending):
            return unit
    return ""
