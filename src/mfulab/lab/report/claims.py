"""Claims that measured numbers carry: one holds if it is true at all ends of its intervals.

Doubt belongs to a claim, not to a row. A row keeps its interval and its reasons for doubt; its mark
is hollow, and its sentence held back, only where what is claimed could turn within them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from mfulab.lab.report import trust

Columns: TypeAlias = Mapping[str, Any] | pd.Series  # a row by its columns


def ends_of(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Ends `low` and `high` that its interval and its doubts leave each row's time or rate; 0 where
    it has none."""
    measured = _numbers(rows, column).fillna(0.0)
    factors = spreads(rows)
    # An endless factor leaves a missing value 0, not a product that is no number.
    high = (measured * factors).where(measured != 0, 0.0)
    return pd.DataFrame({"low": measured / factors, "high": high})


def spreads(rows: pd.DataFrame) -> pd.Series:
    """Factor by which each row's time, or a rate of it, may be off to either side: that of its 95 %
    interval times the reach of its doubts."""
    time_s, low_s, high_s = (
        _numbers(rows, name).where(lambda seconds: seconds > 0)
        for name in ("time_s", "time_ci_low_s", "time_ci_high_s")
    )
    is_known = time_s.notna() & low_s.notna() & high_s.notna()
    interval = np.fmax(time_s / low_s, high_s / time_s).where(is_known, 1.0).clip(lower=1.0)
    reach = pd.Series(1.0, rows.index)
    if trust.REACH in rows:
        reach = rows[trust.REACH].astype(float).fillna(1.0)
    return interval * reach


def _numbers(rows: pd.DataFrame, column: str) -> pd.Series:
    """A column's finite numbers, NaN for all else."""
    if column not in rows:
        return pd.Series(np.nan, rows.index)
    cells = pd.to_numeric(rows[column], errors="coerce").astype(float)
    return cells.where(np.isfinite(cells))


def is_below(low: Columns, high: Columns, column: str) -> bool:
    """True if one row's value stays below another's."""
    ends = ends_of(pd.DataFrame([low, high]), column)
    return bool(ends["high"].iloc[0] < ends["low"].iloc[1])


def differs(low: Columns, high: Columns, column: str) -> bool:
    """True if a ratio of two rows may be told: both are trusted, and one value stays below the
    other."""
    is_trusted = not (low.get(trust.DOUBTS) or high.get(trust.DOUBTS))
    return is_trusted and is_below(low, high, column)


@dataclass(frozen=True)
class Rule:
    """The claims of a figure's marks: a function of its rows that gives True for each whose claim
    holds. If it `compares` rows, numbers that are told come from trusted ones first."""

    held: Callable[[pd.DataFrame], pd.Series]
    compares: bool = False


def turns(module: ModuleType, rows: pd.DataFrame) -> pd.DataFrame:
    """A figure's rows in which those alone are doubtful whose claim could turn; a module without
    `CLAIM` claims whatever its rows say."""
    rows = trust.with_doubts(rows)
    doubtful = rows["doubtful"]
    rule: Rule | None = getattr(module, "CLAIM", None)
    if rule is None or not doubtful.any():
        return rows
    return rows.assign(doubtful=doubtful & ~rule.held(rows))


def compares(module: ModuleType) -> bool:
    """True if a figure's marks claim something of rows that are held against one another."""
    rule: Rule | None = getattr(module, "CLAIM", None)
    return rule is not None and rule.compares


def _of_doubtful(held: Callable[[pd.DataFrame], pd.Series]) -> Callable[[pd.DataFrame], pd.Series]:
    """A function of rows that gives True for trusted ones, and for others what `held` says."""

    def flags(rows: pd.DataFrame) -> pd.Series:
        return held(rows) | ~rows["doubtful"]

    return flags


# Counted, not timed, or a spread that shows its doubt itself: nothing could turn.
COUNTED = Rule(lambda rows: pd.Series(True, rows.index))


def below(low: str, high: str) -> Rule:
    """Claim that one column of a row lies below another."""

    def held(rows: pd.DataFrame) -> pd.Series:
        return ends_of(rows, low)["high"] < ends_of(rows, high)["low"]

    return Rule(_of_doubtful(held))


def side_of(column: str, reference: float) -> Rule:
    """Claim that a ratio lies on its side of a reference, such as faster than before; the reference
    itself claims nothing."""

    def held(rows: pd.DataFrame) -> pd.Series:
        ends = ends_of(rows, column)
        is_above = rows[column] > reference
        stays_above = is_above & (ends["low"] > reference)
        stays_below = ~is_above & (ends["high"] <= reference)
        return stays_above | stays_below | (rows[column] == reference)

    return Rule(_of_doubtful(held), compares=True)


def largest(parts: Sequence[str]) -> Rule:
    """Claim that a row's largest part is larger than any other; parts of one step are disturbed
    together, so that only their ratio may be off."""

    def held(rows: pd.DataFrame) -> pd.Series:
        cells = rows[list(parts)].astype(float).fillna(0)
        second, first = np.sort(cells, axis=1)[:, -2:].T
        return first > second * spreads(rows)

    return Rule(_of_doubtful(held))


def rising(column: str, series: Sequence[str], along: str) -> Rule:
    """Claim that a series rises, or falls, from its first row to its last."""

    def held(rows: pd.DataFrame) -> pd.Series:
        flags = pd.Series(True, rows.index)
        for _, here in rows.sort_values(along).groupby(list(series), dropna=False, sort=False):
            ends = here.iloc[[0, -1]].sort_values(column)
            flags[here.index] = is_below(ends.iloc[0], ends.iloc[1], column)
        return flags

    return Rule(held)


def ordered(column: str, group: Sequence[str]) -> Rule:
    """Claim that a row keeps its place among the rows of its group, by a column."""

    def held(rows: pd.DataFrame) -> pd.Series:
        by_rank = rows.sort_values(column)
        ends = ends_of(by_rank, column)
        groups = by_rank.groupby(list(group), dropna=False, sort=False).ngroup()
        next_low = ends["low"].groupby(groups).shift(-1, fill_value=np.inf)
        # The last of a group has none after it, the first none before it.
        is_last = groups.groupby(groups).cumcount(ascending=False) == 0
        is_before = (ends["high"] < next_low) | is_last
        is_after = is_before.groupby(groups).shift(1, fill_value=True)
        return (is_before & is_after).reindex(rows.index)

    return Rule(held, compares=True)


def contested(rows: pd.DataFrame) -> set[str]:
    """Names of runs whose order with a run that differs from it in one setting could turn: what more
    processes would decide."""
    names = rows["run"].tolist()
    ends = ends_of(rows, "time_s").reset_index(drop=True)
    by_time = _numbers(rows, "time_s").fillna(0.0).to_numpy().argsort(kind="stable")
    alike: dict[frozenset[str], list[int]] = {}
    for place in by_time:
        parts = frozenset(names[place].split(","))
        for part in parts:
            if not part.startswith("batch_size="):  # of other work: their times are not compared
                setting = part.partition("=")[0]
                alike.setdefault((parts - {part}) | {f"{setting}=*"}, []).append(place)
    undecided: set[str] = set()
    for places in alike.values():
        for fast, slow in pairwise(places):
            if ends["high"][fast] >= ends["low"][slow]:
                undecided |= {names[fast], names[slow]}
    return undecided
