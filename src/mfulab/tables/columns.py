"""Every column of every table: its type, unit, description and source, from the models that declare it."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from mfulab.core.files import read_csv
from mfulab.core.rows import Row
from mfulab.measurements.registry import TABLES

LEADING = ("hardware", "experiment", "run", "recorded", "status", "message")
DICTIONARY = ("table", "column", "type", "unit", "description", "source")
UNITS = {
    "_tflop_s": "TFLOP/s",
    "_gb_s": "GB/s",
    "_per_s": "1/s",
    "_per_j": "1/J",
    "_bytes": "B",
    "_flops": "FLOP",
    "flops": "FLOP",
    "_percent": "%",
    "_points": "percentage points",
    "_mhz": "MHz",
    "_ms": "ms",
    "_mb": "MiB",
    "_s": "s",
    "_j": "J",
    "_w": "W",
    "_c": "°C",
}

Record = dict[str, Any]
Records = dict[str, list[Record]]


@cache
def fields(table: str) -> Mapping[str, FieldInfo]:
    """The columns of a final table, in order: who, then the row, then links and joined values.

    A column that repeats a value of the run's config has that key's description.
    """
    measurement = TABLES[table]
    known = {**measurement.joined.model_fields, **measurement.row.model_fields}
    found = {name: known[name] for name in (*LEADING, *measurement.row.model_fields, *measurement.joined.model_fields)}
    for name, path in config_paths(table).items():
        found[name] = FieldInfo(
            annotation=known[name].annotation, description=_key(measurement.config, path).description
        )
    return found


def columns(table: str) -> list[str]:
    """Names of the columns of a final table, in order."""
    return [*fields(table)]


def config_paths(table: str) -> dict[str, str]:
    """Columns that repeat a value of the run's config, each with that value's path."""
    extras = {name: field.json_schema_extra for name, field in TABLES[table].joined.model_fields.items()}
    return {
        name: str(extra["config"]) for name, extra in extras.items() if isinstance(extra, dict) and "config" in extra
    }


def linked(table: str) -> list[str]:
    """Columns that are read from a run's config and plan, and that a recording therefore keeps."""
    return [name for name, field in TABLES[table].joined.model_fields.items() if field.json_schema_extra]


def computed(table: str) -> list[str]:
    """Columns that the join computes."""
    who = {"experiment", "recorded"}
    return [
        name
        for name, field in TABLES[table].joined.model_fields.items()
        if not field.json_schema_extra and name not in who
    ]


@cache
def kept(table: str) -> type[Row]:
    """The row of a recorded table: the measurement's, and the columns that are not computed anew."""
    known = TABLES[table].joined.model_fields
    more: dict[str, Any] = {name: (known[name].annotation, Field(None)) for name in linked(table)}
    return create_model(f"Recorded{TABLES[table].row.__name__}", __base__=TABLES[table].row, **more)


def kinds(table: str) -> dict[str, type]:
    """Each column with its type: str, bool or float (integers too: a missing one has no integer)."""
    return {name: kind(field) for name, field in fields(table).items()}


def kind(field: FieldInfo) -> type:
    """Type of a column's cells: str, bool or float, which integers are too."""
    found = set(_types(field.annotation))
    return bool if bool in found else float if {int, float} & found else str


def dictionary() -> list[dict[str, str]]:
    """A line a column of each table: its type, unit, description, and where its values come from."""
    lines: list[tuple[str, ...]] = []
    for table, measurement in TABLES.items():
        paths, links = config_paths(table), linked(table)
        for name, field in fields(table).items():
            source = "joined" if name in measurement.joined.model_fields else "row"
            source = f"config: {paths[name]}" if name in paths else "plan" if name in links else source
            lines.append((table, name, _type(field), field.description or "", source))
    for line in read_csv(Path(__file__).with_name("other_columns.csv")):
        lines.append((*line.values(), "row"))
    return [
        dict(zip(DICTIONARY, (table, name, text, _unit(name, text), description, source), strict=True))
        for table, name, text, description, source in lines
    ]


def _type(field: FieldInfo) -> str:
    found = kind(field)
    return "int" if found is float and float not in _types(field.annotation) else found.__name__


def _unit(name: str, text: str) -> str:
    return next((UNITS[end] for end in UNITS if text in ("int", "float") and name.endswith(end)), "")


def _key(config: type[BaseModel], path: str) -> FieldInfo:
    """The declaration of a key of a config. Raises KeyError or AttributeError where there is none."""
    group, _, key = path.partition(".")
    annotation: Any = config.model_fields[group].annotation
    return annotation.model_fields[key]  # type: ignore[no-any-return]


def _types(annotation: object) -> Iterator[object]:
    """The plain types in an annotation, without None; a literal's are those of its choices."""
    inner = [part for part in get_args(annotation) if part is not NoneType]
    if not inner:
        yield annotation if isinstance(annotation, type) else type(annotation)
    for part in inner:
        yield from _types(part)
