"""User-facing errors: one sentence that names the key, the value and the choices."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress

LONGEST = 4000  # characters of a message
FEW, NEAR = 12, 3  # choices that a message names all, and of more those that are near
# What the allocators of torch and NumPy say; torch raises a plain RuntimeError for host memory.
NO_MEMORY = ("out of memory", "can't allocate memory", "unable to allocate", "defaultcpuallocator", "memoryerror")
EXTRAS = {"numpy": "trace", "google.protobuf": "jax-traces", "prometheus_client": "prometheus"}
EXTRAS |= dict.fromkeys(("torch", "threadpoolctl"), "torch")
EXTRAS |= dict.fromkeys(("transformers", "pandas", "seaborn", "hydra"), "pipeline")


class ConfigurationError(Exception):
    """A config, path or device that cannot be used; its message, one line, is all that the user sees."""

    def __init__(self, message: str) -> None:
        shown = "".join(letter if letter.isprintable() else " " for letter in message)
        ends = f"{shown[: LONGEST // 2]}…{shown[-LONGEST // 2 :]}"  # a long value stands between its key and the reason
        super().__init__(shown if len(shown) <= LONGEST else ends)


def unknown(what: str, value: object, choices: Iterable[object], listed: str = "") -> ConfigurationError:
    """The error for a `value` of `what` that is no choice: the nearest, and all, or where many are `listed`."""
    names = sorted({str(choice) for choice in choices})
    lowered, asked, most = {name.lower(): name for name in names}, str(value).lower(), NEAR if len(names) > FEW else 1
    near = difflib.get_close_matches(asked, lowered, most) or [name for name in lowered if asked and asked in name]
    hint = f" Did you mean {alternatives([lowered[name] for name in near[:most]])}?" if near else ""
    every = f"All {len(names)}: {listed}" if len(names) > FEW else f"Choices: {', '.join(names)}"
    return ConfigurationError(f"{what}={value}: unknown.{hint} {every}.")


def alternatives(names: Sequence[str]) -> str:
    """Names as `a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


class UnsupportedError(Exception):
    """A run that cannot be done on this device; its message says why and becomes the row's."""


def warn(message: str, category: type[Warning] = UserWarning, stacklevel: int = 2) -> None:
    """Warns beside a user's program, into which nothing is raised: an error by its filters is printed instead."""
    try:
        warnings.warn(f"mfulab: {message}", category, stacklevel=stacklevel + 1)
    except Warning as error:
        with suppress(OSError, ValueError):
            print(error, file=sys.stderr)


def is_out_of_memory(error: object) -> bool:
    """True for an error, or a message, of any library that asked for more memory than there is."""
    return any(words in f"{type(error).__name__} {error}".lower() for words in NO_MEMORY)


def lacks(wanted: str, package: str) -> str:
    """Says that `wanted` needs `package`, and which extra installs it; empty for a package that none is asked for."""
    return f'{wanted} needs {package}: pip install ".[{EXTRAS[package]}]" in the checkout' if package in EXTRAS else ""
