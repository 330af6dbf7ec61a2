"""mfulab measures how much of a device's arithmetic a model really uses, beside how busy the device says it is."""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`mfulab.measure` on first use, so that importing mfulab stays light."""
    if name == "measure":
        return importlib.import_module("mfulab.measure")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
