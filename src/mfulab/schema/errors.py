"""User-facing errors: one sentence that names the key, the value and the choices."""

import difflib
import re
from collections.abc import Iterable
from importlib import metadata

LONGEST = 4000  # characters of a message


class ConfigurationError(Exception):
    """A config, a path or a device that cannot be used; its message is all that the user sees, one line of it."""

    def __init__(self, message: str) -> None:
        shown = "".join(each if each.isprintable() else " " for each in message)
        super().__init__(shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…")


def unknown(what: str, value: object, choices: Iterable[object]) -> ConfigurationError:
    """The error for a `value` of `what` that is none of `choices`, with the nearest one first."""
    names = sorted(str(choice) for choice in choices)
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ConfigurationError(f"{what}={value}: unknown.{hint} Choices: {', '.join(names)}.")


class UnsupportedError(Exception):
    """This run cannot be done on this device; its message says why and becomes the row's."""


def lacks(wanted: str, package: str) -> str:
    """Says that `wanted` needs `package`, and which extra of this project installs it; empty if none does."""
    extra = re.compile(rf"{re.escape(package)}(?![\w.-]).*extra == .(\w+)", re.IGNORECASE)
    found = next(filter(None, map(extra.match, metadata.requires("mfulab") or ())), None)
    return f'{wanted} needs {package}: pip install "mfulab[{found[1]}]"' if found else ""
