"""Checks the seminar's topics: whether recorded rows, figures, notebook cells and tests support what
each claims."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mfulab.core.answer import answered
from mfulab.core.files import read_text, scratch
from mfulab.core.json_text import parse_json
from mfulab.core.printing import say, say_json
from mfulab.core.rows import COUNTERS
from mfulab.core.said import Numbers
from mfulab.lab.planning import keys
from mfulab.lab.report import figures, frames, slides
from mfulab.lab.report.topics import SIGNS, Topic, counted, read
from mfulab.lab.tables import build
from mfulab.measurements.registry import TABLES

GROUPS = ("kernel", "model", "workload", "execution")
# Tables in whose `ok` rows a topic's names may occur.
MEASURED = tuple(table for table in TABLES if table not in ("environment", "ceilings"))
REFERENCE = Path("results/reference")
TEST = "::"  # between file and function in the name of a test


@dataclass(frozen=True)
class Evidence:
    """Evidence for topics: recorded rows, drawn figures and the notebook's cells."""

    tables: frames.Tables
    config: Path
    notebook: Path

    @cached_property
    def cells(self) -> dict[str, str]:
        """Source and outputs of the notebook's code cells that have output, by id."""
        cells = parse_json(read_text(self.notebook))["cells"]
        found = {}
        for cell in cells:
            if cell.get("outputs"):
                found[cell["id"]] = json.dumps(cell, ensure_ascii=False)
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

    @cached_property
    def views(self) -> list[frames.Tables]:
        """The tables of all machines, and those of each device alone, as slides show them."""
        gpus, cpus = slides.shown_devices(self.tables)
        return [self.tables, *(slides.only(self.tables, device) for device in [*gpus, *cpus])]

    def in_figure(self, name: str, text: str) -> set[str]:
        """Names of experiments, models and so on in the rows that a figure shows on the page or on
        the slides of a text."""
        if (name, text) not in self._in_figures:
            own_models = slides.OWN_MODELS.get(text.lower(), [])
            module = figures.modules()[name]
            names = set[str]()
            for tables in self.views:
                for rows in (module.rows(tables), slides.rows_of(module, tables, own_models)):
                    for column in set(self.choices) & set(rows):
                        names |= set(rows[column].dropna())
            self._in_figures[name, text] = names
        return self._in_figures[name, text]

    @cached_property
    def _in_figures(self) -> dict[tuple[str, str], set[str]]:
        return {}

    @property
    def project(self) -> Path:
        """Root folder of the project, to which names of tests are relative."""
        return self.notebook.parents[1]

    def tested(self, name: str) -> str:
        """Text of the file with the test `tests/FILE.py::test_NAME`; empty if there is none."""
        file, _, function = name.partition(TEST)
        path = self.project / file
        if TEST in name and path.is_file():
            text = read_text(path)
            if f"def {function}(" in text:
                return text
        return ""

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
        for name in topic.columns:
            if not self.has_column(name):
                lacking.add(name)
        for name in topic.names & set(TABLES):
            if self.tables[name].empty:
                lacking.add(name)
        return lacking | (topic.names & set(figures.modules())) - self.drawn

    def unseen(self, topic: Topic) -> set[str]:
        """Names in a topic that are in no figure, cell or test that is to show it; of columns only
        where no figure is, as its rows have more columns than it draws."""
        known = set().union(*self.choices.values())
        unseen = topic.measured_names & known
        shown_figures = (topic.names | topic.shown_by) & self.drawn
        for name in shown_figures:
            unseen -= self.in_figure(name, topic.text)
        if not shown_figures:
            unseen |= topic.columns
        for name in topic.shown_by:
            text = self.cells.get(name, "") or self.tested(name)
            unseen -= set(re.findall(r"\w+", text))
        return unseen

    def unproven(self, topic: Topic) -> str:
        """Reason why a topic's ✓ does not hold; empty if it does."""
        lacking = sorted(self.without_rows(topic))
        if lacking:
            return f"no recorded row of {', '.join(lacking)}"
        if not topic.shown:
            return "neither a figure nor a cell shows it"
        shown = {*self.drawn, *self.cells, *filter(self.tested, topic.shown_by)}
        lacking = sorted(topic.shown_by - shown)
        if lacking:
            return f"nothing is drawn or printed by {', '.join(lacking)}"
        unseen = sorted(self.unseen(topic))
        if unseen:
            return f"{', '.join(unseen)} not in what {topic.shown} shows"
        return ""


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
        say_json(
            answer.line(
                {
                    "items": len(read_topics),
                    **states,
                    "unproven": faults,
                }
            )
        )
        return int(bool(faults))
    say(counted(read_topics))
    for topic in read_topics:
        if topic.reason:
            say(f"{SIGNS[topic.state]}  {topic.text}: {topic.topic}: {topic.reason}")
    for name, fault in faults.items():
        say(f"unproven  {name}: {fault}")
    return int(bool(faults))
