"""Parameters and examples of which `make test` uses a few, and `make test ALL=1` all."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

AT_NIGHT = "MFULAB_EXAMPLES" in os.environ


def few(values: Iterable[Any], kept: int = 1) -> list[Any]:
    """Marks all but the first `kept` values as slow. A tuple is for several parameters."""
    values = list(values)
    slow_values = (value if isinstance(value, tuple) else (value,) for value in values[kept:])
    return [
        *values[:kept],
        *(pytest.param(*value, marks=pytest.mark.slow) for value in slow_values),
    ]


def examples(by_day: int, at_night: int) -> int:
    """Number of Hypothesis examples for an expensive property."""
    return at_night if AT_NIGHT else by_day
