"""The one printer of lines: foreign text, such as names of files and models, commands no
terminal."""

import json
import sys
from typing import Any, TextIO

# control and format characters, half ones, separators of lines
COMMANDS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    """Removes from a text whatever a terminal would obey instead of showing it; line ends and tabs
    stay."""
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
    """Prints as `print` does, cleaned by `printable`."""
    line = printable(sep.join(map(str, values)))
    print(line, end=end, file=file or sys.stdout, flush=flush)


def say_json(value: Any, flush: bool = False, **options: Any) -> None:
    """Prints a line of JSON; what a terminal would obey is escaped, so that nothing is lost."""
    text = json.dumps(value, ensure_ascii=False, **options)
    letters = (
        letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1]
        for letter in text
    )
    say("".join(letters), flush=flush)


def say_over(line: str) -> None:
    """Prints a line to the standard error, over the last one that was printed so."""
    say(f"{line} ", end="", file=sys.stderr)
    print(end="\r", file=sys.stderr, flush=True)


def wipe() -> None:
    """Clears the line of `say_over` from a terminal."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
