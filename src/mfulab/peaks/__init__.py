"""Dense peaks of accelerators: what stands under an MFU, with its basis and source, or a refusal.

Needs nothing but Python. Facts are CSV beside this module; `as_json` has them for other languages.

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

# What a look-up by name needs none of is imported once it is asked for.
_LATER = {"Device": "detection", "detect": "detection", "FORMAT": "export", "as_json": "export"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LATER[name]}", __name__), name)
