"""Claims that measured numbers support: a claim holds if it is true at both ends of its intervals.

Doubt belongs to a claim, not to a row. A row keeps its interval and its reasons for doubt. Its mark
is hollow, and its sentence omitted, only if the claim could be false within them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from mfulab.lab.report import frames, trust

Columns: TypeAlias = Mapping[str, Any] | pd.Series  # a row by its columns


def ends_of(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Returns the ends `low` and `high` of each row's time or rate, from its interval and doubts.
    Both are 0 if the value is missing."""
    measured = _numbers(rows, column).fillna(0.0)
    factors = spreads(rows)
    # 0 × infinity would be NaN: a missing value stays 0.
    high = (measured * factors).where(measured != 0, 0.0)
    return pd.DataFrame({"low": measured / factors, "high": high})


def spreads(rows: pd.DataFrame) -> pd.Series:
    """Factor by which each row's time or rate may be off to either side: that of its 95 % interval
    times the reach of its doubts. A single process is as far off as is usual on its machine."""
    times = pd.DataFrame({name: _positive(rows, name) for name in frames.INTERVAL})
    if frames.USUAL in rows:
        times[frames.USUAL] = rows[frames.USUAL]
    low, high = frames.relative_ends(times)
    is_timed = times["time_s"].notna()
    interval = np.fmax(1 / low, high).where(is_timed, 1.0).clip(lower=1.0)
    reach = pd.Series(1.0, rows.index)
    if trust.REACH in rows:
        reach = rows[trust.REACH].astype(float).fillna(1.0)
    return interval * reach


def _positive(rows: pd.DataFrame, column: str) -> pd.Series:
    """Positive numbers of a column; NaN for all others."""
    return _numbers(rows, column).where(lambda numbers: numbers > 0)


def _numbers(rows: pd.DataFrame, column: str) -> pd.Series:
    """Finite numbers of a column; NaN for all other cells, or if the column is missing."""
    if column not in rows:
        return pd.Series(np.nan, rows.index)
    cells = pd.to_numeric(rows[column], errors="coerce").astype(float)
    return cells.where(np.isfinite(cells))


def is_below(low: Columns, high: Columns, column: str) -> bool:
    """True if the value of row `low` lies below that of row `high`, intervals and doubts
    included."""
    ends = ends_of(pd.DataFrame([low, high]), column)
    return bool(ends["high"].iloc[0] < ends["low"].iloc[1])


def differs(low: Columns, high: Columns, column: str) -> bool:
    """True if the ratio of two rows may be stated: both are free of doubts, and one value lies
    below the other."""
    is_trusted = not (low.get(trust.DOUBTS) or high.get(trust.DOUBTS))
    return is_trusted and is_below(low, high, column)


def ties(rows: pd.DataFrame, best: pd.Series, column: str) -> pd.DataFrame:
    """Returns the rows besides `best` whose value could reach that of `best`, intervals and doubts
    included."""
    others = rows.drop(best.name)
    least = ends_of(rows.loc[[best.name]], column)["low"].iloc[0]
    return others[ends_of(others, column)["high"] >= least]


@dataclass(frozen=True)
class Rule:
    """The claims of a figure's marks. `held` returns True for each row whose claim holds. If the
    rule `compares` rows, statements use trusted ones first."""

    held: Callable[[pd.DataFrame], pd.Series]
    compares: bool = False


def turns(module: ModuleType, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns a figure's rows, of which only those whose claim could be false stay doubtful.
    Without `CLAIM` in the module, all doubtful rows do."""
    rows = trust.with_doubts(rows)
    doubtful = rows["doubtful"]
    rule: Rule | None = getattr(module, "CLAIM", None)
    if rule is None or not doubtful.any():
        return rows
    return rows.assign(doubtful=doubtful & ~rule.held(rows))


def compares(module: ModuleType) -> bool:
    """True if the claims of a figure's marks compare rows with each other."""
    rule: Rule | None = getattr(module, "CLAIM", None)
    return rule is not None and rule.compares


def _or_trusted(held: Callable[[pd.DataFrame], pd.Series]) -> Callable[[pd.DataFrame], pd.Series]:
    """Wraps `held` so that the claims of rows without doubt always hold."""

    def flags(rows: pd.DataFrame) -> pd.Series:
        return held(rows) | ~rows["doubtful"]

    return flags


# For counts, and figures that show the spread itself: every claim holds.
COUNTED = Rule(lambda rows: pd.Series(True, rows.index))


def marks_of(module: ModuleType, rows: pd.DataFrame) -> pd.DataFrame:
    """Columns `doubtful` and `recorded` of a figure's rows, for `trust.marks`. Empty if the figure
    shows counts, whose claims all hold."""
    if getattr(module, "CLAIM", None) is COUNTED:
        rows = rows.iloc[:0]
    return trust.with_doubts(rows).reindex(columns=["doubtful", "recorded"])


def below(low: str, high: str) -> Rule:
    """Rule for the claim that one column of a row is below another."""

    def held(rows: pd.DataFrame) -> pd.Series:
        return ends_of(rows, low)["high"] < ends_of(rows, high)["low"]

    return Rule(_or_trusted(held))


def side_of(column: str, reference: float) -> Rule:
    """Rule for the claim that a ratio is above or below a reference, such as faster than before. A
    value equal to the reference claims nothing."""

    def held(rows: pd.DataFrame) -> pd.Series:
        ends = ends_of(rows, column)
        is_above = rows[column] > reference
        is_equal = rows[column] == reference
        stays_above = is_above & (ends["low"] > reference)
        stays_below = ~is_above & (ends["high"] <= reference)
        return stays_above | stays_below | is_equal

    return Rule(_or_trusted(held), compares=True)


def largest(parts: Sequence[str]) -> Rule:
    """Rule for the claim that a row's largest part is larger than the others. Parts of one step are
    disturbed together, so only their ratio matters."""

    def held(rows: pd.DataFrame) -> pd.Series:
        cells = rows[list(parts)].astype(float).fillna(0)
        second, first = np.sort(cells, axis=1)[:, -2:].T
        return first > second * spreads(rows)

    return Rule(_or_trusted(held))


def rising(column: str, series: Sequence[str], along: str) -> Rule:
    """Rule for the claim that a series rises, or falls, from its first row to its last."""

    def held(rows: pd.DataFrame) -> pd.Series:
        flags = pd.Series(True, rows.index)
        in_order = rows.sort_values(along)
        for _, here in in_order.groupby(list(series), dropna=False, sort=False):
            ends = here.iloc[[0, -1]].sort_values(column)
            flags[here.index] = is_below(ends.iloc[0], ends.iloc[1], column)
        return flags

    return Rule(held)


def ordered(column: str, group: Sequence[str]) -> Rule:
    """Rule for the claim that a row keeps its rank by a column within its group."""

    def held(rows: pd.DataFrame) -> pd.Series:
        by_rank = rows.sort_values(column)
        ends = ends_of(by_rank, column)
        groups = by_rank.groupby(
            list(group),
            dropna=False,
            sort=False,
        ).ngroup()
        next_low = ends["low"].groupby(groups).shift(-1, fill_value=np.inf)
        # The last row of a group has no next one, the first no previous one.
        is_last = groups.groupby(groups).cumcount(ascending=False) == 0
        is_before = (ends["high"] < next_low) | is_last
        is_after = is_before.groupby(groups).shift(1, fill_value=True)
        return (is_before & is_after).reindex(rows.index)

    return Rule(held, compares=True)


def contested(rows: pd.DataFrame) -> set[str]:
    """Names of runs whose order with a run that differs in one setting is uncertain. More processes
    would decide it."""
    names = rows["run"].tolist()
    ends = ends_of(rows, "time_s").reset_index(drop=True)
    times = _numbers(rows, "time_s").fillna(0.0).to_numpy()
    by_time = times.argsort(kind="stable")
    undecided: set[str] = set()
    for indices in _differing_in_one(names, by_time):
        for fast, slow in pairwise(indices):
            if ends["high"][fast] >= ends["low"][slow]:
                undecided |= {names[fast], names[slow]}
    return undecided


def _differing_in_one(names: Sequence[str], order: Iterable[int]) -> Iterable[list[int]]:
    """Positions of runs that differ in one setting, each group in the given order. Batches are no
    such setting: the work differs, so times are not compared."""
    found: dict[frozenset[str], list[int]] = {}
    for index in order:
        parts = frozenset(names[index].split(","))
        for part in parts:
            setting, _, _ = part.partition("=")
            if setting != "batch_size":
                others = (parts - {part}) | {f"{setting}=*"}
                found.setdefault(others, []).append(index)
    return found.values()
