"""Errors for users: one sentence that names the key, the value and the choices."""

import difflib
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mfulab.core.printing import printable, say
from mfulab.core.said import Number, Said, SaidError, said_by

PACKAGE = Path(__file__).parents[1]
CHECKOUT = Path(__file__).resolve().parents[3]  # an unrelated folder if installed from a wheel
LONGEST = 4000  # characters of a message
SHOWN = 80  # characters of a value in a message
# Sentences on a name that is not among the choices: without and with similar ones.
CHOICE = ("unknown_choice", "unknown_choice_near")
COMMAND = ("unknown_command", "unknown_command_near")
FRAMES = "Exception raised from"  # begins the C++ stack that torch appends
FEW = 16  # choices that a message lists in full
NEAR = 3  # similar choices that a message names if there are too many to list
# Messages of the allocators of torch and NumPy; torch raises a plain RuntimeError for host memory.
NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "unable to allocate",
    "defaultcpuallocator",
    "memoryerror",
)
EXTRAS = {
    "google.protobuf": "jax-traces",
    "pyarrow": "nsight-parquet",
    "prometheus_client": "prometheus",
}
EXTRAS |= dict.fromkeys(("numpy", "msgspec", "pandas", "seaborn", "jinja2"), "trace")
EXTRAS |= dict.fromkeys(("markupsafe", "platformdirs", "fontTools"), "trace")
EXTRAS |= dict.fromkeys(("torch", "threadpoolctl"), "torch")
EXTRAS |= dict.fromkeys(("transformers", "hydra", "numba", "snakemake"), "pipeline")
# Packages that are installed as a dependency of one in EXTRAS.
BROUGHT = {"matplotlib": "seaborn", "PIL": "seaborn", "mpmath": "torch", "omegaconf": "hydra"}


class ConfigurationError(Exception):
    """A config, path or device that cannot be used. The user sees only its message, which is one
    line. `said` holds the message for other languages; None if only English has it."""

    def __init__(self, message: str | Said, said: Said | None = None) -> None:
        self.said = said
        if isinstance(message, Said):
            self.said = message
            message = str(message)
        super().__init__(one_line(message))


def one_line(message: str) -> str:
    """A message on one line of at most about `LONGEST` characters, without the C++ stack that torch
    appends."""
    sentence, _, _ = message.partition(FRAMES)
    shown = "".join(letter if letter.isprintable() else " " for letter in sentence)
    if len(shown) <= LONGEST:
        return shown
    # a long value stands between its key and the reason
    return f"{shown[: LONGEST // 2]}…{shown[-LONGEST // 2 :]}"


def whole_sentence(error: BaseException) -> Said:
    """An error's message as a sentence that ends with a full stop."""
    return Said("whole_sentence", sentence=said_by(error))


class UnknownChoiceError(ConfigurationError):
    """A value that is not among the choices of its key."""


def unknown(
    what: str,
    value: object,
    choices: Iterable[object],
    listed: str = "",
    keys: tuple[str, str] = CHOICE,
) -> "UnknownChoiceError":
    """Builds the error for a `value` of `what` that is not among `choices`. Its message names the
    nearest choices and all of them; if they are many, it says that `listed` lists them. `keys`
    are those of its sentence."""
    names = sorted(set(map(str, choices)))
    lowered = {name.lower(): name for name in names}
    lowered_value = str(value).lower()
    most = NEAR if len(names) > FEW else 1
    near = difflib.get_close_matches(lowered_value, lowered, most) or [
        name for name in lowered if lowered_value and lowered_value in name
    ]
    every = Said("choices", names=", ".join(names))
    if len(names) > FEW:
        every = Said("all_listed", count=len(names), listed=listed)
    numbers: dict[str, Number | Said] = {"what": what, "value": str(value), "every": every}
    if not near:
        return UnknownChoiceError(Said(keys[0], numbers))
    similar = [lowered[name] for name in near[:most]]
    *others, last = similar
    nearest: Said | str = last
    if others:
        nearest = Said("either", first=", ".join(others), last=last)
    return UnknownChoiceError(Said(keys[1], **numbers, near=nearest))


def shortened(value: object) -> str:
    """A value as messages show it: cut after `SHOWN` characters."""
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


class UnsupportedError(SaidError):
    """A run that this device cannot do; the message says why and goes into the run's row."""


def warn(message: str, category: type[Warning] = UserWarning, stacklevel: int = 2) -> None:
    """Warns without ever raising into a user's program. If a warning filter turns the warning into
    an error, it is printed to stderr instead."""
    try:
        warnings.warn(f"mfulab: {printable(message)}", category, stacklevel=stacklevel + 1)
    except Warning as error:
        with suppress(OSError, ValueError):
            say(error, file=sys.stderr)


def drop_own_frames(error: BaseException) -> None:
    """Removes this package's frames from the top of a traceback, so that a user's program shows its
    own error. Use it in an `except` clause that ends with a bare `raise`."""
    trace = error.__traceback__
    own_files = (str(PACKAGE), sys.modules["torch._ops"].__file__ or "")
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own_files):
        trace = trace.tb_next
    error.__traceback__ = trace


def is_out_of_memory(error: object) -> bool:
    """True if an error or a message, of any library, reports that memory ran out."""
    return any(phrase in f"{type(error).__name__} {error}".lower() for phrase in NO_MEMORY)


def lacks(wanted: str | Said, package: str) -> Said | None:
    """The sentence that `wanted` needs `package`, with the extra that installs it. None if no extra
    installs that package."""
    top_level, _, _ = package.partition(".")
    for name in (package, top_level, BROUGHT.get(top_level, "")):
        if name in EXTRAS:
            install = installs(EXTRAS[name])
            return Said("lacks_package", wanted=wanted, package=name, install=install)
    return None


def is_checkout() -> bool:
    """True if the package runs from a checkout of its sources."""
    return (CHECKOUT / "pyproject.toml").is_file()


def only_in_checkout(path: Path) -> ConfigurationError:
    """The error for a command that needs a source file but runs from an installed package."""
    return ConfigurationError(Said("only_in_checkout", file=str(path)))


def installs(extra: str) -> Said:
    """The command that installs an extra: from the checkout if there is one, else from the package
    index."""
    return Said("pip_in_checkout" if is_checkout() else "pip", extra=extra)
