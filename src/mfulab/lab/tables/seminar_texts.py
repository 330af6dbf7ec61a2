"""Texts of the seminar's table (`seminar.yaml`) in each language, by the key of a line."""

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
    """Returns the lines of `seminar.yaml` in order."""
    content: list[dict[str, Any]] = data(FILE)
    return content


@cache
def translated(language: str) -> Mapping[str, Mapping[str, str]]:
    """Translated texts of a language by the key of a line. Empty for English and unknown
    languages."""
    if language not in _BY_LANGUAGE:
        return {}
    content: Mapping[str, Mapping[str, str]] = data(_BY_LANGUAGE[language])
    return content


def names(template: str) -> list[str]:
    """Names of the values in a template."""
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def in_words(row: Mapping[str, str], language: str) -> dict[str, str]:
    """Texts of a row of the table in a language. A text without a translation stays English."""
    texts = translated(language).get(row["key"], {})
    words = translated(language).get("words", {})
    values = parse_json(row["values"] or "{}")
    values = {name: words.get(value, value) for name, value in values.items()}
    found = {}
    for name in TEXTS:
        found[name] = texts[name].format(**values) if name in texts else row[name]
    return found
