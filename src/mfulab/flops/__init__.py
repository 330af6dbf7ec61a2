"""Counting floating-point operations, the formulas they are checked against, and memory budgets."""

from importlib import import_module
from typing import Any

# Loaded when asked for: tables use the budgets and formulas here without importing torch.
_HOMES = {
    "LayerTracker": "layers",
    "OperatorCounter": "counter",
    "count_model": "model",
    "pretended_ranks": "sharded",
    "register": "operators",
}
__all__ = list(_HOMES)  # noqa: PLE0605 (the names above)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
