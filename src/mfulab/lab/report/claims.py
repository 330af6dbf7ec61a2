"""Claims that measured numbers carry: one holds if it is true at all ends of its intervals.

Doubt belongs to a claim, not to a row. A row keeps its interval and its reasons for doubt; its mark
is hollow, and its sentence held back, only where what is claimed could turn within them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from types import ModuleType
from typing import Any, TypeAlias

import pandas as pd

from mfulab.lab.report import trust
from mfulab.mfu.step import number

Columns: TypeAlias = Mapping[str, Any] | pd.Series  # a row by its columns


@dataclass(frozen=True)
class Value:
    """A number, and the ends between which it may lie."""

    number: float
    low: float
    high: float


@dataclass(frozen=True)
class Claim:
    """A statement about some values: the values by name, and a predicate of their numbers that is
    monotone in each."""

    values: Mapping[str, Value]
    predicate: Callable[..., bool]


def holds(claim: Claim) -> bool:
    """True if the claim is true of its numbers and at every end of their intervals."""
    ends = [(value.number, value.low, value.high) for value in claim.values.values()]
    corners = [dict(zip(claim.values, corner, strict=True)) for corner in product(*ends)]
    return all(claim.predicate(**corner) for corner in corners)


def value_of(row: Columns, column: str) -> Value:
    """A row's time or rate with the ends that its interval and its doubts leave it."""
    measured = number(row.get(column)) or 0.0
    factor = spread(row)
    if not measured:
        return Value(0.0, 0.0, 0.0)
    return Value(measured, measured / factor, measured * factor)


def spread(row: Columns) -> float:
    """Factor by which a row's time, or a rate of it, may be off to either side: that of its 95 %
    interval times the reach of its doubts."""
    time_s, low_s, high_s = (
        number(row.get(name)) for name in ("time_s", "time_ci_low_s", "time_ci_high_s")
    )
    reach = row.get(trust.REACH)
    factor = 1.0
    if reach is not None and reach == reach:
        factor = float(reach)
    if time_s and low_s and high_s:
        factor *= max(1.0, time_s / low_s, high_s / time_s)
    return factor


def is_below(low: Columns, high: Columns, column: str) -> bool:
    """True if one row's value stays below another's."""
    values = {"low": value_of(low, column), "high": value_of(high, column)}
    return holds(Claim(values, lambda low, high: low < high))


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


def _of_doubtful(rows: pd.DataFrame, held: Callable[[pd.Series], bool]) -> pd.Series:
    """A flag a row: True of trusted ones, and of others what `held` says."""
    flags = pd.Series(True, rows.index)
    places = rows["doubtful"].to_numpy().nonzero()[0]
    cells = [held(rows.iloc[index]) for index in places]
    flags.iloc[places] = cells
    return flags


# Counted, not timed, or a spread that shows its doubt itself: nothing could turn.
COUNTED = Rule(lambda rows: pd.Series(True, rows.index))


def below(low: str, high: str) -> Rule:
    """Claim that one column of a row lies below another."""

    def held(row: pd.Series) -> bool:
        values = {"low": value_of(row, low), "high": value_of(row, high)}
        return holds(Claim(values, lambda low, high: low < high))

    return Rule(lambda rows: _of_doubtful(rows, held))


def side_of(column: str, reference: float) -> Rule:
    """Claim that a ratio lies on its side of a reference, such as faster than before; the reference
    itself claims nothing."""

    def held(row: pd.Series) -> bool:
        if row[column] == reference:
            return True
        is_above = row[column] > reference
        values = {"ratio": value_of(row, column)}
        return holds(Claim(values, lambda ratio: (ratio > reference) == is_above))

    return Rule(lambda rows: _of_doubtful(rows, held), compares=True)


def largest(parts: Sequence[str]) -> Rule:
    """Claim that a row's largest part is larger than any other; parts of one step are disturbed
    together, so that only their ratio may be off."""

    def held(row: pd.Series) -> bool:
        first, second = row[list(parts)].astype(float).fillna(0).nlargest(2)
        return bool(first > second * spread(row))

    return Rule(lambda rows: _of_doubtful(rows, held))


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
        flags = pd.Series(True, rows.index)
        for _, here in rows.sort_values(column).groupby(list(group), dropna=False, sort=False):
            for (_, low), (_, high) in pairwise(here.iterrows()):
                if not is_below(low, high, column):
                    flags[[low.name, high.name]] = False
        return flags

    return Rule(held, compares=True)


def contested(names: Sequence[str], rows: Sequence[Columns]) -> set[str]:
    """Names of runs whose order with a run that differs from it in one setting could turn: what more
    processes would decide."""
    settings = [frozenset(name.split(",")) for name in names]
    undecided: set[str] = set()
    alike: dict[frozenset[str], list[int]] = {}
    for index, parts in enumerate(settings):
        for part in parts:
            if not part.startswith("batch_size="):  # of other work: their times are not compared
                setting = part.partition("=")[0]
                alike.setdefault((parts - {part}) | {f"{setting}=*"}, []).append(index)
    for places in alike.values():
        ordered_places = sorted(places, key=lambda index: number(rows[index].get("time_s")) or 0.0)
        for fast, slow in pairwise(ordered_places):
            if not is_below(rows[fast], rows[slow], "time_s"):
                undecided |= {names[fast], names[slow]}
    return undecided
