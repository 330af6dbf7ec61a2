"""Counting floating-point operations, the formulas they are checked against, and memory budgets."""

from typing import Any

__all__ = ["count_model", "register"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: tables use the budgets and formulas here without importing torch.
    if name == "register":
        from mfulab.flops.operators import register

        return register
    if name == "count_model":
        from mfulab.flops.model import count_model

        return count_model
    raise AttributeError(f"module {__name__} has no attribute {name}")
