"""Unions of intervals in whole nanoseconds, as NumPy columns: exact, and fast for millions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Begins and ends of intervals in ns, as columns of equal length."""

    begin: Times
    end: Times


NONE = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(intervals: Intervals) -> Intervals:
    """Merges intervals that touch or overlap. Returns them in order, without empty ones."""
    is_kept = intervals.end > intervals.begin
    begin = intervals.begin[is_kept]
    end = intervals.end[is_kept]
    if not len(begin):
        return NONE
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    furthest = np.maximum.accumulate(end[order])
    opens = np.concatenate(([True], begin[1:] > furthest[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(begin[opens], furthest[closes])


def join(several: Sequence[Intervals]) -> Intervals:
    """Concatenates several sets of intervals without merging them."""
    if not several:
        return NONE
    begins = [part.begin for part in several]
    ends = [part.end for part in several]
    return Intervals(np.concatenate(begins), np.concatenate(ends))


def clip(intervals: Intervals, begin: int, end: int) -> Intervals:
    """Parts of the intervals inside [begin, end)."""
    begins = np.maximum(intervals.begin, begin)
    ends = np.minimum(intervals.end, end)
    is_kept = ends > begins
    return Intervals(begins[is_kept], ends[is_kept])


def length(intervals: Intervals) -> int:
    """Summed length in ns; for disjoint intervals, the time that they cover."""
    return int((intervals.end - intervals.begin).sum())


def within(merged: Intervals, begin: Times, end: Times) -> Times:
    """Nanoseconds of each [begin, end) that `merged`, a union, covers."""
    if not len(merged.begin):
        return np.zeros(len(begin), np.int64)
    covered = np.cumsum(merged.end - merged.begin)
    before = np.concatenate(([0], covered))

    def until(times: Times) -> Times:
        index = np.searchsorted(merged.begin, times, side="right")
        beyond = np.maximum(merged.end[index - 1] - times, 0)
        beyond[index == 0] = 0
        return before[index] - beyond

    return until(end) - until(begin)


def in_turn(begin: Times, end: Times, first: int, last: int) -> Intervals:
    """Parts of intervals, sorted by begin, inside [first, last) that no earlier interval covers."""
    end = np.clip(end, first, last)
    furthest = np.maximum.accumulate(end)
    reached = np.concatenate(([first], furthest[:-1]))[: len(end)]
    begin = np.maximum(begin, reached)
    return Intervals(np.minimum(begin, end), end)


def gaps(merged: Intervals, begin: int, end: int) -> Intervals:
    """Parts of [begin, end) that `merged`, a union inside it, does not cover."""
    begins = np.concatenate(([begin], merged.end))
    ends = np.concatenate((merged.begin, [end]))
    return clip(Intervals(begins, ends), begin, end)


def exclusive(kinds: Sequence[Intervals], begin: int, end: int) -> list[Intervals]:
    """Splits [begin, end) by the first kind that covers each part. Returns the parts of each kind,
    and last those that no kind covers; together they sum to the whole."""
    covered = NONE
    parts = []
    for kind in kinds:
        mine = union(clip(kind, begin, end))
        edges = np.sort(np.concatenate((*mine, *covered)), kind="stable")
        begins = edges[:-1]
        ends = edges[1:]
        is_mine = within(mine, begins, ends) > 0
        is_first = is_mine & (within(covered, begins, ends) == 0)
        parts.append(union(Intervals(begins[is_first], ends[is_first])))
        covered = union(join([covered, mine]))
    return [*parts, gaps(covered, begin, end)]
