"""Prints lines without letting foreign text, such as names of files and models, control the
terminal."""

import json
import sys
from typing import Any, TextIO

# Unicode categories: control and format characters, surrogates, separators of lines.
COMMANDS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """Removes the characters that control a terminal from a text; line ends and tabs stay."""
    if text.isprintable():
        return text
    from unicodedata import category

    return "".join(
        letter for letter in text if letter in "\n\t" or category(letter) not in COMMANDS
    )


def say(
    *values: object,
    sep: str = " ",
    end: str = "\n",
    file: TextIO | None = None,
    flush: bool = False,
) -> None:
    """Prints like `print`, without characters that control a terminal."""
    line = printable(sep.join(map(str, values)))
    print(line, end=end, file=file or sys.stdout, flush=flush)


def say_json(value: Any, flush: bool = False, **options: Any) -> None:
    """Prints a value as JSON on one line; characters that control a terminal are escaped, not
    removed."""
    escaped = []
    for letter in json.dumps(value, ensure_ascii=False, **options):
        is_shown = letter.isprintable() or letter == "\n"
        escaped.append(letter if is_shown else json.dumps(letter)[1:-1])
    say("".join(escaped), flush=flush)


def say_over(line: str) -> None:
    """Prints a line to stderr that replaces the last one printed by this function."""
    say(f"{line} ", end="", file=sys.stderr)
    print(end="\r", file=sys.stderr, flush=True)


def wipe() -> None:
    """Clears the line that `say_over` printed, if stderr is a terminal."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
