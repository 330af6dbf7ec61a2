"""The utilization ladder, each rung once: from a busy device to useful arithmetic, and where a run
falls furthest."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from mfulab.core.formats import FORMATS
from mfulab.mfu.step import number

TENSOR_PRECISIONS = tuple(form.name for form in FORMATS.values() if form.on_tensor_cores)


@dataclass(frozen=True)
class Rung:
    """One rung: `column` of the profile table. With `falls` it belongs to the falling order,
    limited to `precisions`, unless a row has the column `instead`; one `only_below` another is left
    out of rows in which it is no lower."""

    column: str
    falls: bool = True
    precisions: tuple[str, ...] | None = None
    instead: str | None = None
    only_below: str | None = None


RUNGS = (
    Rung("utilization_percent"),
    Rung("kernel_busy_percent"),
    # Other operators keep SMs active too: of these two neither is below the other.
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
COLUMNS = (
    "effective_precision",
    *(rung.column for rung in RUNGS),
)  # all that a row's ladder is read from


@dataclass(frozen=True)
class Measured:
    """A rung that a row has, its value in percent, and whether it is part of this row's falling
    order."""

    column: str
    percent: float
    falls: bool


@dataclass(frozen=True)
class Drop:
    """Two neighbouring rungs of a row's falling order: `above` lies higher than `below`, by
    `points`."""

    above: Measured
    below: Measured

    @property
    def points(self) -> float:
        return self.above.percent - self.below.percent


def measured(row: Mapping[str, object]) -> list[Measured]:
    """The rungs that a row of the profile table has, in the ladder's order."""
    rungs = []
    for rung in RUNGS:
        percent = number(row.get(rung.column))
        above = None
        if rung.only_below:
            above = number(row.get(rung.only_below))
        if percent is not None and (above is None or percent < above * (1 - 1e-9)):
            falls = rung.falls and (
                rung.precisions is None or row.get("effective_precision") in rung.precisions
            )
            beside = rung.instead is not None and number(row.get(rung.instead)) is not None
            rungs.append(Measured(rung.column, percent, falls and not beside))
    return rungs


def largest_drop(row: Mapping[str, object]) -> Drop | None:
    """The largest drop between neighbours of the falling order, the first of equals; None if the
    row never falls."""
    drops = itertools.starmap(
        Drop, itertools.pairwise(rung for rung in measured(row) if rung.falls)
    )
    largest = max(drops, key=lambda drop: drop.points, default=None)
    if largest and largest.points > 0:
        return largest
    return None
