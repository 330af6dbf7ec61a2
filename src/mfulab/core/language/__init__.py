"""All sentences of figures, page and verdicts, in one catalogue per language and none in code."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from mfulab.core.data import data
from mfulab.core.language.quantities import (
    DURATION,
    duration,
    percent,
    quantity,
    significant,
    with_minus,
)

_CATALOGUES = {file.stem: file for file in sorted(Path(__file__).parent.glob("catalogue/*.yaml"))}
LANGUAGES = tuple(_CATALOGUES)
PARTS = ("part", "Part")  # places of a template for a count of a total
PERCENT = re.compile(r"(?<=\d) %")  # as `quantities` write it


class Texts:
    """Texts of one language. `text("finding", count=3)` looks in the section first, then in
    `common`."""

    def __init__(self, language: str = "en", section: str | None = None):
        self.language = language
        self.section = section
        self._texts = catalogue(language)

    def within(self, section: str) -> "Texts":
        return Texts(self.language, section)

    def __call__(self, key: str, **values: Any) -> str:
        template = self._find(key)
        if template is None:
            raise KeyError(
                f"language={self.language}: no text {key!r} in section {self.section!r} or common"
            )
        return self.written(_Words(self).vformat(template, (), values).replace("\\n", "\n"))

    def written(self, words: str) -> str:
        """Writes percent signs as the language does: `6.9 %` in English, `6.9%` in Korean."""
        return PERCENT.sub(self._texts["common"]["percent_sign"], words)

    def has(self, key: str) -> bool:
        """True if the section or `common` has a text for `key`."""
        return self._find(key) is not None

    def name(self, kind: str, value: str) -> str:
        """The word for a value of the data (`mode`, `training`), or the value itself if the
        catalogue has no word."""
        return str(self.words(kind).get(value, value))

    def part(self, count: float, total: float) -> str:
        """`3 of 4` before a noun; other words for none, for all and for the only one."""
        key = "part_of"
        if not count:
            key = "part_none"
        elif count == total:
            key = "part_all"
        return self.within("common")(key, count=count, total=total)

    def duration(self, seconds: float) -> str:
        """Formats a time in seconds, minutes or hours."""
        return duration(seconds, self.words("duration") or DURATION)

    def words(self, kind: str) -> Mapping[str, str]:
        """Words for the values of a kind (`mode`), keyed by value; empty if the catalogue has
        none."""
        words: Mapping[str, str] = self._texts.get("names", {}).get(kind, {})
        return words

    def _find(self, key: str) -> str | None:
        sections = (self._texts.get(section or "", {}) for section in (self.section, "common"))
        for texts in sections:
            if texts.get(key) is not None:
                return str(texts[key])
        return None


@cache
def catalogue(language: str) -> Mapping[str, Any]:
    """The whole catalogue of a language. Raises ValueError if there is none."""
    if language not in LANGUAGES:
        raise ValueError(f"report.language={language}: choose one of {', '.join(LANGUAGES)}")
    content: Mapping[str, Any] = data(_CATALOGUES[language])
    return content


class _Words(Formatter):
    """Adds formats to those of `str.format`.

    `{n:run|runs}` picks the singular or plural, `{t:quantity s}` adds an SI prefix and unit,
    `{t:duration}` formats seconds, `{v:speed}` takes TFLOP/s, `{p:percent}` is never 0.0.
    `{v:significant 2}` has two digits, `{row[mode]:name mode}` is the word for a mode. `{part}` is
    `count` of `total` in words; `{Part}` begins a sentence.
    """

    def __init__(self, text: Texts):
        self._text = text

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if key in PARTS and key not in kwargs:
            words = self._text.part(kwargs["count"], kwargs["total"])
            if key == PARTS[1]:
                return words[:1].upper() + words[1:]
            return words
        return super().get_value(key, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            single, many = format_spec.split("|")
            if value == 1:
                return single
            return many
        kind, _, rest = format_spec.partition(" ")
        formats: Mapping[str, Callable[[], str]] = {
            "quantity": lambda: quantity(value, rest),
            "speed": lambda: quantity(value * 1e12, "FLOP/s"),
            "percent": lambda: percent(value),
            "duration": lambda: self._text.duration(value),
            "significant": lambda: significant(value, int(rest or 3)),
            "name": lambda: self._text.name(rest, value),
        }
        if kind in formats:
            return formats[kind]()
        if isinstance(value, str):  # a number that is not finite: `nan`, `inf`
            return value
        return with_minus(super().format_field(value, format_spec))
