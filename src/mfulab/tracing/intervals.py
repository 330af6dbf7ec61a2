"""Unions of intervals in whole nanoseconds, over columns: exact, and fast for millions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Begins and ends, ns, one place an interval."""

    begin: Times
    end: Times


NONE = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(intervals: Intervals) -> Intervals:
    """The intervals merged where they touch or overlap, in order; empty ones left out."""
    held = intervals.end > intervals.begin
    begin = intervals.begin[held]
    end = intervals.end[held]
    if not len(begin):
        return NONE
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    furthest = np.maximum.accumulate(end[order])
    opens = np.concatenate(([True], begin[1:] > furthest[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(begin[opens], furthest[closes])


def join(several: Sequence[Intervals]) -> Intervals:
    """Intervals of all sets in one, not merged."""
    if not several:
        return NONE
    return Intervals(
        np.concatenate([part.begin for part in several]),
        np.concatenate([part.end for part in several]),
    )


def clip(intervals: Intervals, begin: int, end: int) -> Intervals:
    """The parts inside [begin, end)."""
    inside = Intervals(np.maximum(intervals.begin, begin), np.minimum(intervals.end, end))
    held = inside.end > inside.begin
    return Intervals(inside.begin[held], inside.end[held])


def length(intervals: Intervals) -> int:
    """Summed lengths, ns; of disjoint intervals the time that they cover."""
    return int((intervals.end - intervals.begin).sum())


def within(merged: Intervals, begin: Times, end: Times) -> Times:
    """Nanoseconds of each [begin, end) that `merged`, a union, covers."""
    before = np.concatenate(([0], np.cumsum(merged.end - merged.begin)))

    def until(times: Times) -> Times:
        index = np.searchsorted(merged.begin, times, side="right")
        beyond = 0
        if len(merged.end):
            beyond = np.maximum(merged.end[index - 1] - times, 0)
        return before[index] - np.where(index > 0, beyond, 0)

    return until(end) - until(begin)


def in_turn(begin: Times, end: Times, first: int, last: int) -> Intervals:
    """Parts of intervals, in order of their begin, inside [first, last) and outside of earlier
    intervals."""
    end = np.clip(end, first, last)
    reached = np.concatenate(([first], np.maximum.accumulate(end)[:-1]))[: len(end)]
    return Intervals(np.minimum(np.maximum(begin, reached), end), end)


def gaps(merged: Intervals, begin: int, end: int) -> Intervals:
    """The stretches of [begin, end) outside of `merged` (a union inside it), the edges included."""
    return clip(
        Intervals(np.concatenate(([begin], merged.end)), np.concatenate((merged.begin, [end]))),
        begin,
        end,
    )


def exclusive(kinds: Sequence[Intervals], begin: int, end: int) -> list[Intervals]:
    """Stretches of [begin, end) of each kind outside of earlier kinds, last those of no kind: they
    sum to the whole."""
    covered = NONE
    parts = []
    for kind in kinds:
        mine = union(clip(kind, begin, end))
        edges = np.sort(np.concatenate((*mine, *covered)), kind="stable")
        held = (within(mine, edges[:-1], edges[1:]) > 0) & (
            within(covered, edges[:-1], edges[1:]) == 0
        )
        parts.append(union(Intervals(edges[:-1][held], edges[1:][held])))
        covered = union(join([covered, mine]))
    return [*parts, gaps(covered, begin, end)]
