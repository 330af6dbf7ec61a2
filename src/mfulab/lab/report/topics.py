"""Checks the seminar's topics (`docs/seminar.yaml`): whether recorded rows, figures, notebook cells
and tests support what each claims."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from mfulab.core.answer import answered
from mfulab.core.errors import ConfigurationError, only_in_checkout
from mfulab.core.files import read_given, read_text, scratch
from mfulab.core.json_text import parse_json
from mfulab.core.printing import say, say_json
from mfulab.core.rows import COUNTERS
from mfulab.core.said import Numbers, Said
from mfulab.core.yaml_text import LONGEST, parse_yaml
from mfulab.lab.planning import keys
from mfulab.lab.report import figures, frames
from mfulab.lab.tables import build, seminar_texts
from mfulab.measurements.registry import TABLES

SIGNS = {"works": "✓", "gpu": "†", "partly": "partly", "missing": "missing"}
GROUPS = ("kernel", "model", "workload", "execution")
# Tables in whose `ok` rows a topic's names may occur.
MEASURED = tuple(table for table in TABLES if table not in ("environment", "ceilings"))
TOPICS = "docs/seminar.yaml"
LONGEST_KEY = 80  # letters of the location of a validation error
REFERENCE = Path("results/reference")
TEST = "::"  # between file and function in the name of a test
STATEMENTS = "statements"  # the notebook's cell that shows the table of printed numbers


@dataclass(frozen=True)
class Topic:
    """A quantity that a text asks to measure, or a number that it prints."""

    text: str
    topic: str
    where: str  # text with names in backquotes: experiments, models, columns, tables, figures
    shown: str  # figures, ids of notebook cells and tests, separated by spaces
    state: str  # a key of SIGNS
    reason: str  # why the state is not `works`

    @property
    def names(self) -> set[str]:
        return set(re.findall(r"`(\w+)`", self.where))


@dataclass(frozen=True)
class Evidence:
    """Evidence for topics: recorded rows, drawn figures and the notebook's cells."""

    tables: frames.Tables
    config: Path
    notebook: Path

    @cached_property
    def cells(self) -> set[str]:
        """Ids of the notebook's code cells that have output."""
        cells = parse_json(read_text(self.notebook))["cells"]
        found = set()
        for cell in cells:
            if cell.get("outputs"):
                found.add(cell["id"])
        return found

    @cached_property
    def choices(self) -> dict[str, set[str]]:
        """Values that a topic may name, by the column that holds them."""
        groups = {group: set(keys.choices(self.config, group)) for group in GROUPS}
        experiments = {path.stem for path in (self.config / "experiment").glob("*.yaml")}
        return {"experiment": experiments, **groups}

    @cached_property
    def drawn(self) -> set[str]:
        """Names of figures that have rows."""
        found = set()
        for name, made in figures.modules().items():
            if len(made.rows(self.tables)):
                found.add(name)
        return found

    @cached_property
    def recorded(self) -> dict[str, set[str]]:
        """Names in successfully measured rows, by column."""
        names: dict[str, set[str]] = {column: set() for column in self.choices}
        for table in MEASURED:
            rows = frames.ok(self.tables[table])
            for column in set(names) & set(rows):
                names[column] |= set(rows[column].dropna())
        return names

    @property
    def project(self) -> Path:
        """Root folder of the project, to which names of tests are relative."""
        return self.notebook.parents[1]

    def is_tested(self, name: str) -> bool:
        """True if the project has the test `tests/FILE.py::test_NAME`."""
        file, _, function = name.partition(TEST)
        path = self.project / file
        return path.is_file() and f"def {function}(" in read_text(path)

    def has_column(self, name: str) -> bool:
        """True if a table has a value in the column, or a counter of that name."""
        for rows in self.tables.values():
            if name in rows and rows[name].replace("", None).notna().any():
                return True
        return name in self.counters

    @cached_property
    def counters(self) -> set[str]:
        """Names of the values in the tables' column `counters`."""
        cells = set[str]()
        for rows in self.tables.values():
            if COUNTERS in rows:
                cells |= {*rows[COUNTERS].dropna()} - {""}
        names = set[str]()
        for cell in cells:
            names |= parse_json(cell).keys()
        return names

    def without_rows(self, topic: Topic) -> set[str]:
        """Names in a topic for which no recording has a row or value."""
        lacking: set[str] = set()
        for column, known in self.choices.items():
            lacking |= (topic.names & known) - self.recorded[column]
        for listed in re.findall(r"columns? ((?:`\w+`(?:, )?)+)", topic.where):
            for name in re.findall(r"\w+", listed):
                if not self.has_column(name):
                    lacking.add(name)
        for name in topic.names & set(TABLES):
            if self.tables[name].empty:
                lacking.add(name)
        return lacking | (topic.names & set(figures.modules())) - self.drawn

    def unproven(self, topic: Topic) -> str:
        """Reason why a topic's ✓ does not hold; empty if it does."""
        lacking = sorted(self.without_rows(topic))
        if lacking:
            return f"no recorded row of {', '.join(lacking)}"
        if not topic.shown:
            return "neither a figure nor a cell shows it"
        shown = set(topic.shown.split())
        tested = set()
        for name in shown:
            if TEST in name and self.is_tested(name):
                tested.add(name)
        lacking = sorted(shown - tested - self.drawn - self.cells)
        if lacking:
            return f"nothing is drawn or printed by {', '.join(lacking)}"
        return ""


def read(path: Path) -> list[Topic]:
    """Returns each topic of the file, and each number and statement that a text prints, by text."""
    topics = []
    statements = seminar_texts.lines()
    for text, items in _texts(path).items():
        for item in items:
            state, _, reason = item.state.partition(":")
            topics.append(Topic(text, item.topic, item.where, item.shown, state, reason.strip()))
        for line in statements:
            if line["source"] == text.lower():
                where = f"table `seminar`: {line['printed']}"
                topics.append(Topic(text, line["case"], where, STATEMENTS, "works", ""))
    return topics


class Item(BaseModel, extra="forbid"):
    """One topic as written in the file."""

    topic: str
    where: str
    state: str
    shown: str = ""


_TEXTS = TypeAdapter(dict[str, list[Item]])


def _texts(path: Path) -> dict[str, list[Item]]:
    """Reads the topics of each text. Raises ConfigurationError if the file is missing or
    invalid."""
    if str(path) == TOPICS and not path.exists():
        raise only_in_checkout(path)
    try:
        return _TEXTS.validate_python(parse_yaml(read_given(path, LONGEST)))
    except ValueError as error:
        detail = f" ({error})"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))[:LONGEST_KEY]
            detail = ""
            if where:
                detail = f" ({where}: {first['msg']})"
        named: Numbers = {"file": str(path), "example": TOPICS, "detail": detail}
        raise ConfigurationError(Said("no_topics", named)) from error


def counted(topics: list[Topic]) -> str:
    """Sentence with the number of items in each state."""
    states = Counter(topic.state for topic in topics)
    counts = ", ".join(f"{sign} {states[state]}" for state, sign in SIGNS.items())
    return f"Of {len(topics)} items: {counts}."


def recorded() -> frames.Tables:
    """Tables of the recordings that are part of the project."""
    with scratch() as folder:
        build.write(build.collect(reference=REFERENCE), Path(folder))
        return frames.read(Path(folder))[0]


def show(topics: Path, tables: Path | None, config: Path, notebook: Path, as_json: bool) -> int:
    """Prints the number of items in each state, and items whose ✓ does not hold in `tables`, by
    default the recordings. Returns 1 if there are any."""
    read_topics = read(topics)
    rows = recorded() if tables is None else frames.read(tables)[0]
    evidence = Evidence(rows, config, notebook.resolve())
    faults = {}
    for topic in read_topics:
        if topic.state == "works":
            fault = evidence.unproven(topic)
            if fault:
                faults[topic.topic] = fault
    if as_json:
        states = Counter(topic.state for topic in read_topics)
        doubt: dict[str, Numbers] = {name: {"because": fault} for name, fault in faults.items()}
        answer = answered(len(read_topics) - len(faults), "items", "counted", doubt=doubt)
        say_json(answer.line({"items": len(read_topics), **states, "unproven": faults}))
        return int(bool(faults))
    say(counted(read_topics))
    for topic in read_topics:
        if topic.reason:
            say(f"{SIGNS[topic.state]}  {topic.text}: {topic.topic}: {topic.reason}")
    for name, fault in faults.items():
        say(f"unproven  {name}: {fault}")
    return int(bool(faults))
