"""Sentences in the language of the user's terminal."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from mfulab.core.said import Said

if TYPE_CHECKING:
    from mfulab.core.language import Texts


_ASKED: ContextVar[str] = ContextVar("language asked for", default="")


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Makes a language that a command was asked for the terminal's; none if it is empty."""
    before = _ASKED.set(language)
    try:
        yield
    finally:
        _ASKED.reset(before)


def usual_language() -> str:
    """Language that the command was asked for, else that of the terminal from `LC_ALL`,
    `LC_MESSAGES` or `LANG` (`ko_KR.UTF-8` is `ko`); `en` if no catalogue has it."""
    asked = _ASKED.get()
    if asked:
        return asked
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    language = locale[:2]
    if language == "en":  # known without the catalogues
        return language
    from mfulab.core.language import LANGUAGES

    if language in LANGUAGES:
        return language
    return "en"


def terminal_texts(section: str) -> "Texts":
    """Texts of a section of the catalogue in the terminal's language."""
    from mfulab.core.language import Texts

    return Texts(usual_language(), section)


def in_words(said: Said) -> str:
    """A sentence in the terminal's language."""
    from mfulab.core.language.sentences import sentence

    return sentence(said.key, said.numbers, usual_language())


def error_in_words(error: BaseException) -> str:
    """An error's message in the terminal's language; in English if no catalogue has its
    sentence."""
    said = getattr(error, "said", None)
    if not isinstance(said, Said) or usual_language() == "en":
        return str(error)
    from mfulab.core.errors import one_line

    return one_line(in_words(said))
