"""`mfulab schema`: JSON Schema of configs and rows; checks and writes the files generated from
them."""

import difflib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

import click
from pydantic import BaseModel

from mfulab.cli.options import STEP, command
from mfulab.core.errors import only_in_checkout
from mfulab.core.files import write_text
from mfulab.core.language import Texts
from mfulab.core.printing import say, say_json
from mfulab.lab.planning.keys import SET_BY_PLANNING, Asked, Experiment, defaults, group_model
from mfulab.lab.report import topics
from mfulab.lab.tables.columns import dictionary
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.mfu.causes import CAUSES

CONFIG = Path("config")
README = CONFIG / "README.md"
# Heading in config.yaml; all below it is generated.
KEYS = "# Every key with its default, written by `mfulab schema --fix`:\n"
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}"}
TOPICS = Path("docs/seminar.yaml")
SEMINAR = Path("docs/seminar.md")
WHY = Path("docs/why.md")
CAUSES_TABLE = (
    "| verdict | the step is slow because | try | otherwise | measure the first |\n"
    "|---|---|---|---|---|\n"
)
# Headings in config/README.md of the tables of experiments, and of groups of keys.
EXPERIMENTS = "## Experiments, by question\n"
GROUPS = "## Groups: several keys by one name\n"


@command("schema", "schema profile_step --row")
@click.argument("step", type=STEP, metavar="[MEASUREMENT]", required=False)
@click.option(
    "--row", is_flag=True, help="Print the schema of the row, and the columns of its table."
)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="List what is out of date in config/; the status is 1 if anything is.",
)
@click.option(
    "--fix",
    is_flag=True,
    help="Update config/: the defaults in config.yaml, KEYS.md, schema.json, the list of experiments.",
)
def run(step: str | None, row: bool, only_check: bool, fix: bool) -> int:
    """Prints the JSON Schema of a measurement's config or row; without a measurement, a table of
    all keys. Returns the exit status."""
    if only_check or fix:
        return check(fix)
    if step is None:
        say(table_of_keys())
        return 0
    measurement = MEASUREMENTS[step]
    schema = (measurement.row if row else measurement.config).model_json_schema()
    if row:  # in addition to the run's columns, all columns of its table
        schema["table"] = [
            column.model_dump() for column in dictionary() if column.table == measurement.table
        ]
    say_json(schema, indent=2)
    return 0


def check(fix: bool) -> int:
    """Prints how the generated files differ from the models and experiments. Returns 1 if they do;
    with `fix`, writes the files and returns 0. Raises ConfigurationError outside a checkout."""
    for needed in (CONFIG / "config.yaml", README):
        if not needed.exists():
            raise only_in_checkout(needed)
    differences = list[str]()
    for path, text in generated().items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = difflib.unified_diff(
            old.splitlines(), text.splitlines(), str(path), f"{path}, generated", n=0
        )
        for line in lines:
            differences.append(line.rstrip("\n"))
        if fix and old != text:
            write_text(path, text)
    for line in differences:
        say(line)
    if differences and not fix:
        stale = "these files are out of date; `mfulab schema --fix` writes them."
        say(f"mfulab: {stale}", file=sys.stderr)
    return int(bool(differences) and not fix)


def generated() -> dict[Path, str]:
    """Text of each file in this folder that is generated, wholly or in part."""
    files = dict[Path, str]()
    if TOPICS.exists():
        files[SEMINAR] = _put(SEMINAR, "## State\n", "\n## Examples", _topics())
    if WHY.exists():
        files[WHY] = _put(WHY, CAUSES_TABLE, "\nThe last column", _causes())
    config = CONFIG / "config.yaml"
    files[config] = _put(config, KEYS, "", "".join(_yaml(Experiment, defaults())))
    files[CONFIG / "KEYS.md"] = table_of_keys() + "\n"
    files[CONFIG / "schema.json"] = json.dumps(_experiment_schema(), indent=1) + "\n"
    readme = README.read_text(encoding="utf-8")
    readme = _between(readme, EXPERIMENTS, "\n## ", _lines(_experiments(readme)))
    files[README] = _between(readme, GROUPS, "\n## ", _lines(_groups(readme)))
    return files


def _causes() -> str:
    """Rows of the table of verdicts: cause, its sentence, what to try first and otherwise, and the
    sweep that measures the first."""
    because = Texts("en", "because")
    advice = Texts("en", "advice")
    otherwise = Texts("en", "otherwise")
    lines = []
    for cause in CAUSES:
        clause = "unknown"
        if because.has(cause.key):
            clause = because(cause.key)
        others = ""
        if otherwise.has(cause.key):
            others = otherwise(cause.key, shorter=1)
        cells = (f"`{cause.key}`", clause, advice(cause.key), others, f"`{cause.remedy}`")
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def _topics() -> str:
    """Tables of the seminar's topics, with a row per item or printed number, below the count of
    each state."""
    items = topics.read(TOPICS)
    lines = [f"\n{topics.counted(items)}"]
    for text in dict.fromkeys(item.text for item in items):
        head = "| topic | where | shown by | state |"
        lines += [f"\n## {text}\n", head, "|---|---|---|---|"]
        for item in items:
            if item.text == text:
                state = ": ".join(filter(None, [topics.SIGNS[item.state], item.reason]))
                lines.append(f"| {item.topic} | {item.where} | {item.shown} | {state} |")
    return "\n".join(lines) + "\n"


def _put(file: Path, after: str, before: str, generated_text: str) -> str:
    """A file's text, replaced as by `_between`."""
    return _between(file.read_text(encoding="utf-8"), after, before, generated_text)


def _between(text: str, after: str, before: str, generated_text: str) -> str:
    """The text with everything between the first `after` and the next `before` replaced. An empty
    `before` means the end of the text."""
    head, heading, tail = text.partition(after)
    if not heading or before not in tail:
        raise click.UsageError(
            f"{after.strip()!r}: not found, or not followed by {before.strip()!r}."
        )
    kept = tail[tail.index(before) :] if before else ""
    return head + heading + generated_text + kept


def _yaml(model: type[BaseModel], values: dict[str, object], indent: str = "") -> Iterator[str]:
    """Yields a line per key: its default, and its description as a comment."""
    readers = {key: steps for key, _, _, steps in _table()}
    for name, value in values.items():
        field = model.model_fields[name]
        inner = group_model(field.annotation)
        if inner is not None and isinstance(value, dict):
            summary, _, _ = (inner.__doc__ or "").partition("\n\n")
            yield f"{indent}{name}: # {' '.join(summary.split())}\n"
            yield from _yaml(inner, value, f"{indent}  ")
            continue
        text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
        steps = [] if indent else readers.get(name, [])
        reader = ""
        if len(steps) == 1 and steps[0] in MEASUREMENTS:
            reader = f" [{steps[0]}]"
        yield f"{indent}{name}: {text} # {field.description or ''}{reader}\n"


def table_of_keys() -> str:
    """Markdown table of all keys: name, values, meaning, and the measurements that read it."""
    lines = [
        "# Keys\n\nMade by `mfulab schema --fix`.\n",
        "| key | values | meaning | read by |",
        "|---|---|---|---|",
    ]
    for name, values, meaning, steps in _table():
        readers = ", ".join(f"`{step}`" if step in MEASUREMENTS else step for step in steps)
        lines.append(f"| `{name}` | {values} | {meaning} | {readers} |")
    return "\n".join(lines)


def _table() -> list[tuple[str, str, str, list[str]]]:
    """(key, values, meaning, readers) of every key."""
    keys: dict[str, tuple[str, str, str, list[str]]] = {}
    models: dict[str, type[BaseModel]] = {
        step: measurement.config for step, measurement in MEASUREMENTS.items()
    }
    for reader, model in (models | {"planning": Asked}).items():
        for name, values, meaning in _fields(model):
            keys.setdefault(name, (name, values, meaning, []))[3].append(reader)
    return list(keys.values())


def _fields(config: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields name, values (choices, or type and bounds) and meaning of each key."""
    schema = config.model_json_schema(by_alias=False)["properties"]
    for name, field in config.model_fields.items():
        nested = group_model(field.annotation)
        if nested is not None:
            yield from _fields(nested, f"{name}.")
        elif name not in SET_BY_PLANNING:
            options = schema[name].get("anyOf", [schema[name]])
            first = next(option for option in options if option.get("type") != "null")
            bounds = []
            for key, form in BOUNDS.items():
                if key in first:
                    bounds.append(form.format(first[key]))
            values = ", ".join(f"`{value}`" for value in first.get("enum", ()))
            values = values or " ".join([first.get("type", "text"), *bounds])
            yield prefix + name, values, (field.description or "").replace("|", "\\|")


def _experiment_schema() -> dict[str, object]:
    """JSON Schema of an experiment's file, for completion and checks in editors. All keys are
    optional."""
    schema = Experiment.model_json_schema()
    for definition in (schema, *schema["$defs"].values()):
        definition.pop("required", None)
    for name in SET_BY_PLANNING & set(schema["properties"]):
        del schema["properties"][name]
    schema["properties"] |= {"hydra": {"type": "object"}, "defaults": {"type": "array"}}
    return schema


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _groups(readme: str) -> Iterator[str]:
    """Yields the lines of the README's section on groups, with the measurements that read each."""
    for line in _section(readme, GROUPS):
        row = re.match(r"\| `(\w+)` \|[^|]*\|", line)
        if row is None or row[1] == "experiment":  # which planning alone reads
            yield line
            continue
        readers = []
        for step, measurement in MEASUREMENTS.items():
            if row[1] in measurement.config.model_fields:
                readers.append(f"`{step}`")
        yield f"{row[0]} {', '.join(readers)} |"


def _section(readme: str, heading: str) -> list[str]:
    """Lines below a heading, up to the next."""
    return readme.partition(heading)[2].partition("\n## ")[0].splitlines()


def _experiments(readme: str) -> Iterator[str]:
    """Yields the lines of the README's section, with an updated row per experiment: its name, and
    the comment that its file begins with. Rows of new experiments come last."""
    files = {path.stem: path for path in sorted((CONFIG / "experiment").glob("*.yaml"))}
    for line in _section(readme, EXPERIMENTS):
        row = re.match(r"\| `(\w+)` \|", line)
        if row is None:
            yield line
        elif row[1] in files:
            yield _row(files.pop(row[1]))
    yield from map(_row, files.values())


def _row(experiment: Path) -> str:
    lines = experiment.read_text(encoding="utf-8").splitlines()[1:]
    comment = " ".join(line[2:] for line in takewhile(re.compile(r"# \S").match, lines))
    return f"| `{experiment.stem}` | {comment.replace('](docs/', '](../docs/')} |"
