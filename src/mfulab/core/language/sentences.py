"""Sentences of the catalogues for keys and the numbers in them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol, runtime_checkable

from mfulab.core.language import Texts

SECTIONS = ("verdict", "reasons")  # of the catalogues, in which the keys of sentences are


@runtime_checkable
class Keyed(Protocol):
    """A sentence by its key and the numbers in it, such as `mfulab.core.said.Said`."""

    @property
    def key(self) -> str:
        """Key in the catalogues."""

    @property
    def numbers(self) -> Mapping[str, object]:
        """Numbers by their names in the sentence."""


def sentence(key: str, numbers: Mapping[str, object], language: str = "en") -> str:
    """The sentence of a verdict's reason, a flag or a note; the key itself where none is known."""
    try:
        values = {name: _in_words(value, language) for name, value in numbers.items()}
        texts = next(texts for texts in _said(language) if texts.has(key))
        return texts(key, **values)
    except (AttributeError, StopIteration, KeyError, ValueError, TypeError):
        return key


def reason(given: str | Mapping[str, Mapping[str, Any]], language: str = "en") -> str:
    """The sentences of {key: numbers}, joined by semicolons; a text of an older row is one
    already."""
    if isinstance(given, str):
        return given
    return "; ".join(sentence(key, numbers, language) for key, numbers in given.items())


@cache
def _said(language: str) -> Sequence[Texts]:
    return [Texts(language, section) for section in SECTIONS]


def _in_words(value: object, language: str) -> object:
    """A number as it is; a sentence within a sentence, or its {key: numbers}, in words."""
    if isinstance(value, Mapping):
        return reason(value, language)
    if isinstance(value, Keyed):
        return sentence(value.key, value.numbers, language)
    return value
