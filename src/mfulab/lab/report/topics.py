"""The seminar's topics (`docs/seminar.yaml`): what each text asks to measure, where it is, and its
state."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from mfulab.core.errors import ConfigurationError, only_in_checkout
from mfulab.core.files import read_given
from mfulab.core.said import Said
from mfulab.core.yaml_text import LONGEST, parse_yaml
from mfulab.lab.tables import seminar_texts

SIGNS = {"works": "✓", "gpu": "†", "partly": "partly", "missing": "missing"}
TOPICS = "docs/seminar.yaml"
LONGEST_KEY = 80  # letters of the location of a validation error
COLUMNS = re.compile(r"columns? ((?:`\w+`(?:, )?)+)")
# Lists of names that are of tables, columns or figures.
OTHERS = re.compile(r"(?:table|column|figure)s? (?:`\w+`(?:, | and )?)+")
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

    @property
    def shown_by(self) -> set[str]:
        return set(self.shown.split())

    @property
    def columns(self) -> set[str]:
        """Names in lists of columns."""
        found = set[str]()
        for listed in COLUMNS.findall(self.where):
            found |= set(re.findall(r"\w+", listed))
        return found

    @property
    def measured_names(self) -> set[str]:
        """Names of what is measured: experiments, models, workloads, executions and kernels."""
        others = OTHERS.sub("", self.where)
        return set(re.findall(r"`(\w+)`", others))


def read(path: Path) -> list[Topic]:
    """Returns each topic of the file, and each number and statement that a text prints, by text."""
    topics = []
    statements = seminar_texts.lines()
    for text, items in _texts(path).items():
        for item in items:
            state, _, reason = item.state.partition(":")
            topics.append(
                Topic(
                    text,
                    item.topic,
                    item.where,
                    item.shown,
                    state,
                    reason.strip(),
                )
            )
        for line in statements:
            if line["source"] == text.lower():
                where = f"table `seminar`: {line['printed']}"
                topics.append(
                    Topic(
                        text,
                        line["case"],
                        where,
                        STATEMENTS,
                        "works",
                        "",
                    )
                )
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
        raise ConfigurationError(
            Said("no_topics", file=str(path), example=TOPICS, detail=detail)
        ) from error


def counted(topics: list[Topic]) -> str:
    """Sentence with the number of items in each state."""
    states = Counter(topic.state for topic in topics)
    counts = ", ".join(f"{sign} {states[state]}" for state, sign in SIGNS.items())
    return f"Of {len(topics)} items: {counts}."
