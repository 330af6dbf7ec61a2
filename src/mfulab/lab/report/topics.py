"""The seminar's topics (`docs/seminar.yaml`): what each claims to have, held against recorded rows,
figures, the notebook's cells and tests."""

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
# Tables of which a run's name must be in an `ok` row.
MEASURED = tuple(table for table in TABLES if table not in ("environment", "ceilings"))
TOPICS = "docs/seminar.yaml"
LONGEST_KEY = 80  # letters of the place of a mistake
REFERENCE = Path("results/reference")
TEST = "::"  # within the name of a test: its file, then its function
STATEMENTS = "statements"  # the notebook's cell that shows the table of printed numbers


@dataclass(frozen=True)
class Topic:
    """One thing that a text asks to be measured, or a number that it prints."""

    text: str
    topic: str
    where: str  # names in code quotes: experiments, models, columns, tables, figures
    shown: str  # figures, ids of the notebook's cells, and tests, between spaces
    state: str  # a key of SIGNS
    reason: str  # why it is not `works`

    @property
    def names(self) -> set[str]:
        return set(re.findall(r"`(\w+)`", self.where))


@dataclass(frozen=True)
class Evidence:
    """Recorded rows, drawn figures and the notebook's cells."""

    tables: frames.Tables
    config: Path
    notebook: Path

    @cached_property
    def cells(self) -> set[str]:
        """Ids of the notebook's code cells that show something."""
        cells = parse_json(read_text(self.notebook))["cells"]
        found = set()
        for cell in cells:
            if cell.get("outputs"):
                found.add(cell["id"])
        return found

    @cached_property
    def choices(self) -> dict[str, set[str]]:
        """Values that an item may name, by the column that holds them."""
        groups = {group: set(keys.choices(self.config, group)) for group in GROUPS}
        experiments = {path.stem for path in (self.config / "experiment").glob("*.yaml")}
        return {"experiment": experiments, **groups}

    @cached_property
    def drawn(self) -> set[str]:
        """Figures that have rows."""
        found = set()
        for name, made in figures.modules().items():
            if len(made.rows(self.tables)):
                found.add(name)
        return found

    @cached_property
    def recorded(self) -> dict[str, set[str]]:
        """Names in rows that were measured, by column."""
        names: dict[str, set[str]] = {column: set() for column in self.choices}
        for table in MEASURED:
            rows = frames.ok(self.tables[table])
            for column in set(names) & set(rows):
                names[column] |= set(rows[column].dropna())
        return names

    @property
    def project(self) -> Path:
        """The folder in which names of tests begin."""
        return self.notebook.parents[1]

    def is_tested(self, name: str) -> bool:
        """True if the project has the test, `tests/FILE.py::test_NAME`."""
        file, _, function = name.partition(TEST)
        path = self.project / file
        return path.is_file() and f"def {function}(" in read_text(path)

    def has_column(self, name: str) -> bool:
        """True if a table has a value in the column, or a counter of this name."""
        tables = []
        for rows in self.tables.values():
            if name in rows:
                tables.append(rows)
        is_filled = any(rows[name].replace("", None).notna().any() for rows in tables)
        return is_filled or name in self.counters

    @cached_property
    def counters(self) -> set[str]:
        """Names of values that stand in the tables' column `counters`."""
        cells = set[str]()
        for rows in self.tables.values():
            if COUNTERS in rows:
                cells |= {*rows[COUNTERS].dropna()} - {""}
        names = set[str]()
        for cell in cells:
            names |= parse_json(cell).keys()
        return names

    def without_rows(self, topic: Topic) -> set[str]:
        """Names of an item of which no recording has a row or value."""
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
        """Reason why ✓ does not hold of an item; empty where it does."""
        if lacking := sorted(self.without_rows(topic)):
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
    """Each topic of the file, and each number and statement that a text prints, by text."""
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
    """One topic as its file has it."""

    topic: str
    where: str
    state: str
    shown: str = ""


_TEXTS = TypeAdapter(dict[str, list[Item]])


def _texts(path: Path) -> dict[str, list[Item]]:
    """Items of each text. Raises ConfigurationError for a file that holds none, or is absent."""
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
    """Sentence with the number of items of each state."""
    states = Counter(topic.state for topic in topics)
    counts = ", ".join(f"{sign} {states[state]}" for state, sign in SIGNS.items())
    return f"Of {len(topics)} items: {counts}."


def recorded() -> frames.Tables:
    """Tables of the recordings that the project ships."""
    with scratch() as folder:
        build.write(build.collect(reference=REFERENCE), Path(folder))
        return frames.read(Path(folder))[0]


def show(topics: Path, tables: Path | None, config: Path, notebook: Path, as_json: bool) -> int:
    """Prints the count of each state, and items whose ✓ does not hold in `tables`, or in the
    recordings; returns 1 if there is one."""
    read_topics = read(topics)
    rows = recorded() if tables is None else frames.read(tables)[0]
    evidence = Evidence(rows, config, notebook.resolve())
    faults = {}
    for topic in read_topics:
        if topic.state == "works" and (fault := evidence.unproven(topic)):
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
