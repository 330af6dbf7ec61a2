"""mfulab measures how much of a device's arithmetic a model really uses, beside how busy the device says it is."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`mfulab.measure` and `mfulab.peak`, imported at their first use, so that planning does not wait for torch."""
    if name == "measure":
        from mfulab.interactive.measure import Window

        return Window
    if name == "peak":
        from mfulab.hardware.peaks import peak

        return peak
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
