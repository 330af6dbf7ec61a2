"""mfulab measures how much of a device's arithmetic a model really uses, beside how busy the device says it is."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


_LIBRARY = {
    "measure": ("mfulab.interactive.measure", "Window"),
    "peak": ("mfulab.hardware.peaks", "peak"),
    "explain": ("mfulab.conventions.explain", "explain"),
}


def __getattr__(name: str) -> Any:
    """The library's functions, imported at their first use, so that planning does not wait for torch."""
    if name not in _LIBRARY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LIBRARY[name]
    return getattr(import_module(module), attribute)
