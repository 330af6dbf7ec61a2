"""Turns keys and numbers into sentences of the catalogues."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from mfulab.core.language import Texts
from mfulab.core.said import Said

SECTIONS = ("verdict", "reasons")  # of the catalogues, searched for keys in this order


def sentence(key: str, numbers: Mapping[str, object], language: str = "en") -> str:
    """The sentence for a key, with its numbers filled in; the key itself if no catalogue has it or
    the numbers do not fit. `SECTION.KEY` names a key of another section."""
    try:
        values = {name: _in_words(value, language) for name, value in numbers.items()}
        section, _, name = key.rpartition(".")
        if section:
            return Texts(language, section)(name, **values)
        texts = next(texts for texts in _sections(language) if texts.has(key))
        return texts(key, **values)
    except (AttributeError, StopIteration, KeyError, ValueError, TypeError):
        return key


def reason(sentences: str | Mapping[str, Mapping[str, Any]], language: str = "en") -> str:
    """The sentences of {key: numbers}, joined by semicolons; a plain text, as older rows hold, is
    returned unchanged."""
    if isinstance(sentences, str):
        return sentences
    return "; ".join(sentence(key, numbers, language) for key, numbers in sentences.items())


@cache
def _sections(language: str) -> Sequence[Texts]:
    return [Texts(language, section) for section in SECTIONS]


def _in_words(value: object, language: str) -> object:
    """Puts a nested sentence, or its {key: numbers}, into words; returns any other value
    unchanged."""
    if isinstance(value, Mapping):
        return reason(value, language)
    if isinstance(value, Said):
        return sentence(value.key, value.numbers, language)
    return value
