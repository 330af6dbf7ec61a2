"""The utilization ladder, each rung once: from a busy device to useful arithmetic, and where a run
falls most."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from mfulab.core.formats import FORMATS
from mfulab.mfu.step import number

TENSOR_PRECISIONS = tuple(form.name for form in FORMATS.values() if form.on_tensor_cores)


@dataclass(frozen=True)
class Rung:
    """One rung: a `column` of the profile table. If it `falls`, it belongs to the falling order,
    only for `precisions`, and unless a row has the column `instead`. A rung with `only_below` is
    left out of rows in which it is not lower than that column."""

    column: str
    falls: bool = True
    precisions: tuple[str, ...] | None = None
    instead: str | None = None
    only_below: str | None = None


RUNGS = (
    Rung("utilization_percent"),
    Rung("kernel_busy_percent"),
    # Other operators keep SMs active too, so neither of these two is always below the other.
    Rung("matmul_percent", instead="sm_active_percent"),
    Rung("sm_active_percent"),
    Rung("occupancy_percent", falls=False),  # good matmuls run at low occupancy
    Rung("tensor_active_percent", precisions=TENSOR_PRECISIONS),
    *(Rung(f"{unit}_active_percent", falls=False) for unit in ("fp32", "fp64", "fp16", "dram")),
    Rung("mbu_percent", falls=False),
    Rung("issued_percent", precisions=TENSOR_PRECISIONS),
    Rung("executed_percent", precisions=TENSOR_PRECISIONS),
    Rung("hfu_percent"),
    Rung("mfu_percent"),
    Rung("useful_mfu_percent", only_below="mfu_percent"),
)
# Columns that a row's ladder is read from.
COLUMNS = ("effective_precision", *(rung.column for rung in RUNGS))


@dataclass(frozen=True)
class MeasuredRung:
    """A rung that a row has, its value in percent, and whether it belongs to this row's falling
    order."""

    column: str
    percent: float
    falls: bool


@dataclass(frozen=True)
class Drop:
    """Two neighbouring rungs of a row's falling order: `above` is higher than `below` by
    `points`."""

    above: MeasuredRung
    below: MeasuredRung

    @property
    def points(self) -> float:
        return self.above.percent - self.below.percent


def measured(row: Mapping[str, object]) -> list[MeasuredRung]:
    """Rungs that a row of the profile table has, in the ladder's order."""
    rungs = []
    for rung in RUNGS:
        percent = number(row.get(rung.column))
        above = None
        if rung.only_below:
            above = number(row.get(rung.only_below))
        if percent is None or (above is not None and percent >= above * (1 - 1e-9)):
            continue
        falls = rung.falls
        if rung.precisions is not None:
            falls = falls and row.get("effective_precision") in rung.precisions
        if rung.instead is not None:
            falls = falls and number(row.get(rung.instead)) is None
        rungs.append(MeasuredRung(rung.column, percent, falls))
    return rungs


def largest_drop(row: Mapping[str, object]) -> Drop | None:
    """Largest drop between neighbours in the falling order, the first of equal ones; None if the
    row never falls."""
    falling = [rung for rung in measured(row) if rung.falls]
    drops = itertools.starmap(Drop, itertools.pairwise(falling))
    largest = max(drops, key=lambda drop: drop.points, default=None)
    if largest and largest.points > 0:
        return largest
    return None
