"""Counts floating-point operations, with published formulas to compare and memory budgets."""

from importlib import import_module
from typing import Any

_PLACES = {"LayerTracker": "layers", "OperatorCounter": "counter"}
_PLACES |= {"pretended_ranks": "sharded", "register": "operators"}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that tables can use budgets and formulas without importing torch.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"mfulab.flops.{_PLACES[name]}"), name)
