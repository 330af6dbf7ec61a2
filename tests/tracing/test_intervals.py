"""Unions of intervals against counting every nanosecond."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mfulab.tracing.intervals import NONE, Intervals, clip, exclusive, gaps, join, length, union

pairs = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=12)


def intervals(found: list[tuple[int, int]]) -> Intervals:
    begin = np.array([one for one, _ in found], np.int64)
    return Intervals(begin, begin + np.array([other for _, other in found], np.int64))


def covered(found: Intervals) -> set[int]:
    return {point for begin, end in zip(*found, strict=True) for point in range(begin, end)}


@given(pairs)
def test_a_union_covers_the_same_points_once_and_in_order(found):
    merged = union(intervals(found))
    assert covered(merged) == covered(intervals(found))
    assert length(merged) == len(covered(merged))
    assert (merged.begin[1:] > merged.end[:-1]).all()


@given(pairs)
def test_busy_and_gaps_fill_the_span(found):
    busy = union(clip(intervals(found), 10, 90))
    free = gaps(busy, 10, 90)
    assert length(busy) + length(free) == 80
    assert not covered(busy) & covered(free)


@given(st.lists(pairs, max_size=5))
def test_each_nanosecond_is_spent_once(kinds):
    parts = exclusive([intervals(kind) for kind in kinds], 10, 90)
    assert sum(map(length, parts)) == 80
    before: set[int] = set()
    for kind, part in zip(kinds, parts, strict=False):
        mine = covered(clip(intervals(kind), 10, 90))
        assert covered(part) == mine - before
        before |= mine


def test_nothing_is_nothing():
    assert length(union(NONE)) == length(join([])) == 0


def test_times_since_1970_lose_no_nanosecond():
    long_ago = 1_661_938_466_265_032_123
    assert length(union(Intervals(np.array([long_ago]), np.array([long_ago + 1])))) == 1
