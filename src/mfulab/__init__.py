"""Measures how much of a device's arithmetic throughput a model uses (MFU), next to the utilization
that the device reports."""

from typing import TYPE_CHECKING, Any

# what type checkers and editors see; at run time each is imported when it is first used
if TYPE_CHECKING:
    from mfulab.device.peaks import peak as peak
    from mfulab.loop.goodput.journal import Journal as Journal
    from mfulab.loop.interactive.decorator import measured as measured
    from mfulab.loop.interactive.huggingface import TrainerCallback as TrainerCallback
    from mfulab.loop.interactive.lightning import LightningCallback as LightningCallback
    from mfulab.loop.interactive.measure import Measurement as measure  # noqa: N813
    from mfulab.loop.interactive.without_data import flops_of as flops_of
    from mfulab.models.fits import fits as fits
    from mfulab.models.work import explain as explain
    from mfulab.timing.paired import gate as gate

__version__ = "0.1.0"

_LIBRARY = {
    "measure": ("mfulab.loop.interactive.measure", "Measurement"),
    "measured": ("mfulab.loop.interactive.decorator", "measured"),
    "TrainerCallback": ("mfulab.loop.interactive.huggingface", "TrainerCallback"),
    "LightningCallback": ("mfulab.loop.interactive.lightning", "LightningCallback"),
    "Journal": ("mfulab.loop.goodput.journal", "Journal"),
    "flops_of": ("mfulab.loop.interactive.without_data", "flops_of"),
    "peak": ("mfulab.device.peaks", "peak"),
    "explain": ("mfulab.models.work", "explain"),
    "fits": ("mfulab.models.fits", "fits"),
    "gate": ("mfulab.timing.paired", "gate"),
}
__all__ = [
    "Journal", "LightningCallback", "TrainerCallback", "explain", "fits", "flops_of", "gate", "measure", "measured",
    "peak",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports a public function at its first use, so that planning need not wait for torch. Raises
    ModuleNotFoundError naming the extra to install if a package is missing."""
    if name not in _LIBRARY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LIBRARY[name]
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        from mfulab.core.errors import lacks

        sentence = lacks(f"mfulab.{name}", error.name or "")
        if sentence is None:
            raise
        raise ModuleNotFoundError(str(sentence), name=error.name) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_LIBRARY])
