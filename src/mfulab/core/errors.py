"""User-facing errors: one sentence that names the key, the value and the choices."""

import difflib
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mfulab.core.printing import printable, say
from mfulab.core.said import Number, Said, SaidError, said_by

PACKAGE = Path(__file__).parents[1]
CHECKOUT = Path(__file__).resolve().parents[3]  # of a wheel a folder of something else
LONGEST = 4000  # characters of a message
SHOWN = 80  # characters of a value in a message
FRAMES = "Exception raised from"  # what torch adds: places in its own C++
FEW = 16  # choices that a message lists
NEAR = 3  # choices that a message names all, and of more those that are near
# What the allocators of torch and NumPy say; torch raises a plain RuntimeError for host memory.
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
# What comes with a package that an extra names.
BROUGHT = {"matplotlib": "seaborn", "PIL": "seaborn", "mpmath": "torch", "omegaconf": "hydra"}


class ConfigurationError(Exception):
    """A config, path or device that cannot be used; its message, one line, is all that the user
    sees. `said` is the same for other languages; none where only English has it."""

    def __init__(self, message: str | Said, said: Said | None = None) -> None:
        self.said = said
        if isinstance(message, Said):
            self.said = message
            message = str(message)
        super().__init__(one_line(message))


def one_line(message: str) -> str:
    """A message as a line of a bounded length, without frames that torch adds."""
    sentence, _, _ = message.partition(FRAMES)
    shown = "".join(letter if letter.isprintable() else " " for letter in sentence)
    if len(shown) <= LONGEST:
        return shown
    # a long value stands between its key and the reason
    return f"{shown[: LONGEST // 2]}…{shown[-LONGEST // 2 :]}"


def whole_sentence(error: BaseException) -> Said:
    """An error's sentence with its full stop."""
    return Said("whole_sentence", {"sentence": said_by(error)})


class UnknownChoiceError(ConfigurationError):
    """A value that is no choice of its key."""


def unknown(
    what: str, value: object, choices: Iterable[object], listed: str = ""
) -> "UnknownChoiceError":
    """The error for a `value` of `what` that is no choice: the nearest, and all, or where many are
    `listed`."""
    names = sorted(set(map(str, choices)))
    lowered = {name.lower(): name for name in names}
    asked = str(value).lower()
    most = NEAR if len(names) > FEW else 1
    near = difflib.get_close_matches(asked, lowered, most) or [
        name for name in lowered if asked and asked in name
    ]
    every = Said("choices", {"names": ", ".join(names)})
    if len(names) > FEW:
        every = Said("all_listed", {"count": len(names), "listed": listed})
    asked_of: dict[str, Number | Said] = {"what": what, "value": str(value), "every": every}
    if not near:
        return UnknownChoiceError(Said("unknown_choice", asked_of))
    similar = [lowered[name] for name in near[:most]]
    *others, last = similar
    nearest: Said | str = last
    if others:
        nearest = Said("either", {"first": ", ".join(others), "last": last})
    return UnknownChoiceError(Said("unknown_choice_near", {**asked_of, "near": nearest}))


def shortened(value: object) -> str:
    """A value as a message repeats it: its beginning, where it is long."""
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


class UnsupportedError(SaidError):
    """A run that cannot be done on this device; its message says why and becomes the row's."""


def warn(message: str, category: type[Warning] = UserWarning, stacklevel: int = 2) -> None:
    """Warns beside a user's program, into which nothing is raised: an error by its filters is
    printed instead."""
    try:
        warnings.warn(f"mfulab: {printable(message)}", category, stacklevel=stacklevel + 1)
    except Warning as error:
        with suppress(OSError, ValueError):
            say(error, file=sys.stderr)


def drop_own_frames(error: BaseException) -> None:
    """Takes the package's frames off the head of a traceback, in an `except` clause that ends with
    a bare `raise`: a program's own traceback then reads as without mfulab."""
    trace = error.__traceback__
    own = (str(PACKAGE), sys.modules["torch._ops"].__file__ or "")
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    error.__traceback__ = trace


def is_out_of_memory(error: object) -> bool:
    """True for an error, or a message, of any library that asked for more memory than there is."""
    return any(phrase in f"{type(error).__name__} {error}".lower() for phrase in NO_MEMORY)


def lacks(wanted: str | Said, package: str) -> Said | None:
    """Says that `wanted` needs `package`, and which extra installs it; None for a package that
    none is asked for."""
    named, _, _ = package.partition(".")
    for name in (package, named, BROUGHT.get(named, "")):
        if name in EXTRAS:
            install = installs(EXTRAS[name])
            return Said("lacks_package", {"wanted": wanted, "package": name, "install": install})
    return None


def is_checkout() -> bool:
    """True where the package runs from a checkout of its sources."""
    return (CHECKOUT / "pyproject.toml").is_file()


def only_in_checkout(path: Path) -> ConfigurationError:
    """The error for a file of the sources that a command needs where there is none."""
    return ConfigurationError(Said("only_in_checkout", {"file": str(path)}))


def installs(extra: str) -> Said:
    """The command that installs an extra: in a checkout, or of the package where this is none."""
    return Said("pip_in_checkout" if is_checkout() else "pip", {"extra": extra})
