"""Sentences in the language of the terminal."""

import os

from mfulab.core.said import Said


def usual_language() -> str:
    """The language of the terminal, as `LC_ALL` or `LANG` names it (`ko_KR.UTF-8`); English where no
    catalogue has it."""
    named = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    language = named[:2]
    if language == "en":  # known without the catalogues
        return language
    from mfulab.core.language import LANGUAGES

    if language in LANGUAGES:
        return language
    return "en"


def in_words(said: Said) -> str:
    """The words of a sentence in the terminal's language."""
    from mfulab.core.language.sentences import sentence

    return sentence(said.key, said.numbers, usual_language())


def error_in_words(error: BaseException) -> str:
    """An error's sentence in the terminal's language; its message where that is English, or no
    catalogue has the sentence."""
    said = getattr(error, "said", None)
    if not isinstance(said, Said) or usual_language() == "en":
        return str(error)
    from mfulab.core.errors import one_line

    return one_line(in_words(said))
