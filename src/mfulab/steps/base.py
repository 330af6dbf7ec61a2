"""Result of a step, which is a function from its config to a row and the raw samples behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mfulab.schema.errors import UnsupportedError
from mfulab.schema.rows import Row

__all__ = ["Measured", "Step", "UnsupportedError"]


@dataclass(frozen=True)
class Measured:
    """A finished step: its row, and the raw samples (one mapping a CSV line, the same keys in each) behind it."""

    row: Row
    samples: Sequence[Mapping[str, object]] = field(default=())


# A step module defines `measure(config, folder)`: `config` is the one of `mfulab.schema.measurements.MEASUREMENTS`,
# `folder` the run's own folder, where the step may leave further files (series, operator table, trace). It raises
# UnsupportedError if the run cannot be done; out of memory and other exceptions become rows in runtime/run.py.
Step = Callable[[Any, Path], Measured]
