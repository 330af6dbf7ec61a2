"""Dense peaks of accelerators, the denominators of MFU, each with its basis and source. Raises an
error rather than guess.

Needs only the standard library. The facts are CSV files in this folder; `as_json` exports them for
other languages.

>>> peak("NVIDIA H100 80GB HBM3", "bf16").value
989...
"""

from typing import TYPE_CHECKING

from .facts import Datasheet, datasheets
from .lookup import NoPeakError, Peak, peak
from .names import UnknownDeviceError, find

if TYPE_CHECKING:
    from .detection import Device, detect
    from .export import FORMAT, as_json

__version__ = "0.1.0"
__all__ = [
    "FORMAT",
    "Datasheet",
    "Device",
    "NoPeakError",
    "Peak",
    "UnknownDeviceError",
    "as_json",
    "datasheets",
    "detect",
    "find",
    "peak",
]

# Imported on first use, as a look-up by name does not need them.
_LATER = {"Device": "detection", "detect": "detection", "FORMAT": "export", "as_json": "export"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LATER[name]}", __name__), name)
