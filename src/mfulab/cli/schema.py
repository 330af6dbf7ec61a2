"""`mfulab schema`: JSON Schema of configs and rows, and what config/ says of keys and experiments."""

import difflib
import json
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import yaml
from pydantic import BaseModel

from mfulab.core.files import write_text
from mfulab.lab.planning.keys import SET_BY_PLANNING, Asked, Experiment, defaults, group_model
from mfulab.lab.tables.columns import dictionary
from mfulab.measurements.registry import MEASUREMENTS

CONFIG = Path("config")
README = CONFIG / "README.md"
KEYS = "# Every key with its default, written by `mfulab schema --fix`:\n"  # in config.yaml, up to its end
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}"}
TOPICS, SEMINAR = Path("docs/seminar.yaml"), Path("docs/seminar.md")
PRINTED = Path("src/mfulab/lab/tables/seminar.yaml")
STATES = {"works": "works", "gpu": "†", "partly": "partly", "missing": "missing"}  # of a topic, each with its sign
EXPERIMENTS = "## Experiments, by question\n"  # in config/README.md, up to the next heading: tables of experiments


def run(step: str | None, row: bool, only_check: bool, fix: bool) -> int:
    """Prints the JSON Schema of a measurement's config, or of its `row`; without one all keys. Gives the status."""
    if only_check or fix:
        return check(fix)
    if step is None:
        click.echo(table_of_keys())
        return 0
    measurement = MEASUREMENTS[step]
    schema = (measurement.row if row else measurement.config).model_json_schema()
    if row:  # beside what a run writes, all columns of the table that it ends in
        schema["table"] = [column.model_dump() for column in dictionary() if column.table == measurement.table]
    click.echo(json.dumps(schema, indent=2))
    return 0


def check(fix: bool) -> int:
    """Prints how the generated files differ from the models and experiments, and returns 1; writes them with `fix`."""
    if not (CONFIG / "config.yaml").exists() or not README.exists():
        raise click.UsageError("No config/config.yaml and config/README.md here: work in the project's folder.")
    differences = list[str]()
    for path, text in generated().items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), f"{path}, generated", n=0)
        differences += [line.rstrip("\n") for line in lines]
        if fix and old != text:
            write_text(path, text)
    click.echo("\n".join(differences), nl=bool(differences))
    if differences and not fix:
        click.echo("mfulab: these files are out of date; `mfulab schema --fix` writes them.", err=True)
    return int(bool(differences) and not fix)


def generated() -> dict[Path, str]:
    """Text of each file of this folder that is generated, wholly or in part."""
    config, readme = CONFIG / "config.yaml", README.read_text(encoding="utf-8")
    topics = {SEMINAR: _put(SEMINAR, "## State\n", "\n## Examples", _topics())} if TOPICS.exists() else {}
    return topics | {
        config: _put(config, KEYS, "", "".join(_yaml(Experiment, defaults()))),
        CONFIG / "KEYS.md": table_of_keys() + "\n",
        CONFIG / "schema.json": json.dumps(_of_experiments(), indent=1) + "\n",
        README: _put(README, EXPERIMENTS, "\n## ", "".join(f"{line}\n" for line in _experiments(readme))),
    }


def _topics() -> str:
    """Tables of the seminar's topics, a row an item or a printed number, below the count of each state."""
    texts = yaml.safe_load(TOPICS.read_text(encoding="utf-8")) | {"Several texts": []}
    for line in yaml.safe_load(PRINTED.read_text(encoding="utf-8")):
        if line["source"] != "ours":  # each number and statement that a text prints
            items = texts.get(line["source"].capitalize(), texts["Several texts"])
            items.append({"topic": line["case"], "where": f"table `seminar`: {line['printed']}", "state": "works"})
    states = [item["state"].partition(":")[0] for items in texts.values() for item in items]
    counts = ", ".join(f"{sign} {states.count(state)}" for state, sign in STATES.items())
    lines = [f"\nOf {len(states)} items: {counts}."]
    for text, items in texts.items():
        lines += [f"\n## {text}\n", "| topic | where | state |", "|---|---|---|"]
        for item in items:
            state, colon, reason = item["state"].partition(":")
            lines.append(f"| {item['topic']} | {item['where']} | {STATES[state]}{colon}{reason} |")
    return "\n".join(lines) + "\n"


def _put(file: Path, after: str, before: str, made: str) -> str:
    """A file's text with `made` between the first `after` and the next `before`, or the end where that is empty."""
    head, begin, tail = file.read_text(encoding="utf-8").partition(after)
    if not begin or before not in tail:
        raise click.UsageError(f"{after.strip()!r}: not found, or not followed by {before.strip()!r}.")
    return head + begin + made + (tail[tail.index(before) :] if before else "")


def _yaml(model: type[BaseModel], values: dict[str, object], indent: str = "") -> Iterator[str]:
    """A line a key: its default, and its description as the comment."""
    readers = {key: steps for key, _, _, steps in _table()}
    for name, value in values.items():
        field = model.model_fields[name]
        inner = group_model(field.annotation)
        if inner is not None and isinstance(value, dict):
            yield f"{indent}{name}: # {(inner.__doc__ or '').splitlines()[0]}\n"
            yield from _yaml(inner, value, f"{indent}  ")
            continue
        text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
        steps = readers.get(name, []) if not indent else []
        read = f" [{steps[0]}]" if len(steps) == 1 and steps[0] in MEASUREMENTS else ""
        yield f"{indent}{name}: {text} # {field.description or ''}{read}\n"


def table_of_keys() -> str:
    """Table in Markdown of each key: its name, its values, its meaning and the measurements that read it."""
    lines = ["# Keys\n\nMade by `mfulab schema --fix`.\n", "| key | values | meaning | read by |", "|---|---|---|---|"]
    for name, values, meaning, steps in _table():
        read = ", ".join(f"`{step}`" if step in MEASUREMENTS else step for step in steps)
        lines.append(f"| `{name}` | {values} | {meaning} | {read} |")
    return "\n".join(lines)


def _table() -> list[tuple[str, str, str, list[str]]]:
    """(key, values, meaning, what reads it) of every key."""
    keys: dict[str, tuple[str, str, str, list[str]]] = {}
    models: dict[str, type[BaseModel]] = {step: measurement.config for step, measurement in MEASUREMENTS.items()}
    for reader, model in (models | {"planning": Asked}).items():
        for name, values, meaning in _fields(model):
            keys.setdefault(name, (name, values, meaning, []))[3].append(reader)
    return list(keys.values())


def _fields(config: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, values (choices, bounds or type) and meaning of each key."""
    schema = config.model_json_schema(by_alias=False)["properties"]
    for name, field in config.model_fields.items():
        nested = group_model(field.annotation)
        if nested is not None:
            yield from _fields(nested, f"{name}.")
        elif name not in SET_BY_PLANNING:
            options = schema[name].get("anyOf", [schema[name]])
            first = next(option for option in options if option.get("type") != "null")
            bounds = [form.format(first[key]) for key, form in BOUNDS.items() if key in first]
            values = ", ".join(f"`{value}`" for value in first.get("enum", ()))
            values = values or " ".join([first.get("type", "text"), *bounds])
            yield prefix + name, values, (field.description or "").replace("|", "\\|")


def _of_experiments() -> dict[str, object]:
    """JSON Schema of an experiment's file, by which editors complete and check it: any key, none of them required."""
    schema = Experiment.model_json_schema()
    for definition in (schema, *schema["$defs"].values()):
        definition.pop("required", None)
    for name in SET_BY_PLANNING & set(schema["properties"]):
        del schema["properties"][name]
    schema["properties"] |= {"hydra": {"type": "object"}, "defaults": {"type": "array"}}
    return schema


def _experiments(readme: str) -> Iterator[str]:
    """The section's lines, with a row an experiment: its name, and what its file says first; new ones come last."""
    files = {path.stem: path for path in sorted((CONFIG / "experiment").glob("*.yaml"))}
    for line in readme.partition(EXPERIMENTS)[2].partition("\n## ")[0].splitlines():
        if row := re.match(r"\| `(\w+)` \|", line):
            if row[1] in files:
                yield _row(files.pop(row[1]))
        else:
            yield line
    yield from map(_row, files.values())


def _row(experiment: Path) -> str:
    lines = experiment.read_text(encoding="utf-8").splitlines()[1:]
    words = " ".join(line[2:] for line in takewhile(re.compile(r"# \S").match, lines))
    return f"| `{experiment.stem}` | {words.replace('](docs/', '](../docs/')} |"
