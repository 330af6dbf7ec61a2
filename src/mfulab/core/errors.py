"""User-facing errors: one sentence that names the key, the value and the choices."""

import difflib
from collections.abc import Iterable

LONGEST = 4000  # characters of a message
EXTRAS = {
    "numpy": "trace",
    "torch": "torch",
    "threadpoolctl": "torch",
    "google.protobuf": "jax-traces",
    "prometheus_client": "prometheus",
    "transformers": "pipeline",
    "pandas": "pipeline",
    "seaborn": "pipeline",
    "hydra": "pipeline",
}


class ConfigurationError(Exception):
    """A config, path or device that cannot be used; its message, one line, is all that the user sees."""

    def __init__(self, message: str) -> None:
        shown = "".join(letter if letter.isprintable() else " " for letter in message)
        ends = f"{shown[: LONGEST // 2]}…{shown[-LONGEST // 2 :]}"  # a long value stands between its key and the reason
        super().__init__(shown if len(shown) <= LONGEST else ends)


def unknown(what: str, value: object, choices: Iterable[object]) -> ConfigurationError:
    """The error for a `value` of `what` that is not among `choices`, with the nearest choice first."""
    names = sorted(str(choice) for choice in choices)
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return ConfigurationError(f"{what}={value}: unknown.{hint} Choices: {', '.join(names)}.")


class UnsupportedError(Exception):
    """A run that cannot be done on this device; its message says why and becomes the row's."""


def lacks(wanted: str, package: str) -> str:
    """Says that `wanted` needs `package`, and which extra installs it; empty for a package that none is asked for."""
    return f'{wanted} needs {package}: pip install ".[{EXTRAS[package]}]" in the checkout' if package in EXTRAS else ""
