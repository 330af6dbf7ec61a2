"""`mfulab schema`: JSON Schema of configs and rows, and the table of keys that config/README.md shows."""

import json
from collections.abc import Iterator

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mfulab.measurements.registry import MEASUREMENTS
from mfulab.tables.columns import dictionary

SET_BY_PLANNING = {"name", "target", "digest", "installed", "replicate", "path"}


def show(step: str | None, row: bool) -> int:
    """Prints the JSON Schema of the config of `step`; without a step the table of keys.

    With `row` that of its row, and under `table` every column of its table, as in columns.csv.
    """
    if step is None:
        click.echo(keys())
        return 0
    if step not in MEASUREMENTS:
        raise click.BadParameter(f"{step}. Choices: {', '.join(MEASUREMENTS)}", param_hint="STEP")
    measurement = MEASUREMENTS[step]
    schema = (measurement.row if row else measurement.config).model_json_schema()
    if row:
        schema["table"] = [line for line in dictionary() if line["table"] == measurement.table]
    click.echo(json.dumps(schema, indent=2, ensure_ascii=False))
    return 0


def keys() -> str:
    """Table in Markdown of each key of a run: its name, its values, its meaning and the steps that read it."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    for step, measurement in MEASUREMENTS.items():
        for name, values, meaning in _fields(measurement.config):
            found.setdefault(name, (values, meaning, []))[2].append(f"`{step}`")
    lines = ["# Keys of a run", "", "Made by `mfulab schema > config/KEYS.md`.", ""]
    lines += ["| key | values | meaning | read by |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {values} | {meaning} | {', '.join(steps)} |" for name, (values, meaning, steps) in found.items()
    ]
    return "\n".join(lines)


def _fields(config: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    schema = config.model_json_schema(by_alias=False)["properties"]
    for name, field in config.model_fields.items():
        nested = _model(field)
        if nested is not None:
            yield from _fields(nested, f"{name}.")
        elif name not in SET_BY_PLANNING:
            yield prefix + name, _values(schema[name]), (field.description or "").replace("|", "\\|")


def _model(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a group, also of one that may be left out."""
    for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _values(schema: dict[str, object]) -> str:
    """Choices, bounds or type of a value, in a few words."""
    options = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]  # type: ignore[attr-defined]
    (each, *_) = options
    if "enum" in each:
        return ", ".join(f"`{value}`" for value in each["enum"])
    bounds = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}"}
    told = [form.format(each[key]) for key, form in bounds.items() if key in each]
    return " ".join([str(each.get("type", "text")), *told])
