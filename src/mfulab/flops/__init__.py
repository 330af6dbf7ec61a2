"""Counting floating-point operations, the formulas they are checked against, and memory budgets."""

from typing import Any

__all__ = ["LayerTracker", "OperatorCounter", "pretended_ranks", "register"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: tables use the budgets and formulas here without importing torch.
    if name == "register":
        from mfulab.flops.operators import register

        return register
    if name in ("LayerTracker", "OperatorCounter"):
        from mfulab.flops import counter

        return getattr(counter, name)
    if name == "pretended_ranks":
        from mfulab.flops.sharded import pretended_ranks

        return pretended_ranks
    raise AttributeError(f"module {__name__} has no attribute {name}")
