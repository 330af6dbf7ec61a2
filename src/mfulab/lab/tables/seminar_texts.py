"""Texts of the seminar's numbers (`seminar.yaml`) in a language, by the key of each line and the
values in them."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from mfulab.core.data import data
from mfulab.core.json_text import parse_json
from mfulab.core.parts import Record

TEXTS = ("case", "printed", "formula", "answer", "note")
FILE = Path(__file__).with_name("seminar.yaml")
_BY_LANGUAGE = {
    file.name.split(".")[1]: file for file in Path(__file__).parent.glob("seminar.*.yaml")
}


def lines() -> list[Record]:
    """The lines of `seminar.yaml`, in its order."""
    content: list[dict[str, Any]] = data(FILE)
    return content


@cache
def translated(language: str) -> Mapping[str, Mapping[str, str]]:
    """Texts of a language that differ from the English ones, by a line's key; none of English."""
    if language not in _BY_LANGUAGE:
        return {}
    content: Mapping[str, Mapping[str, str]] = data(_BY_LANGUAGE[language])
    return content


def names(template: str) -> list[str]:
    """The values that a text asks for."""
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def in_words(row: Mapping[str, str], language: str) -> dict[str, str]:
    """The texts of a row of the table in a language; as they are where it has none."""
    texts = translated(language).get(row["key"], {})
    words = translated(language).get("words", {})
    values = parse_json(row["values"] or "{}")
    said = {name: words.get(value, value) for name, value in values.items()}
    return {name: texts[name].format(**said) if name in texts else row[name] for name in TEXTS}
