"""Statistics against hand-computed cases and laws that hold for any values."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.timing.statistics import FEWEST_WINDOWS, Stats, median_interval

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


def test_by_hand():
    stats = Stats([4, 1, 3, 2, 10])
    assert stats.median == 3
    assert stats.percentile(5) == pytest.approx(1.2)
    assert stats.percentile(95) == pytest.approx(8.8)
    assert stats.standard_deviation == pytest.approx(math.sqrt(50 / 4))


def test_even_numbers_of_values_share_the_middle():
    assert Stats([1, 2, 3, 10]).median == 2.5


@pytest.mark.parametrize("bad", [[], [1, math.nan], [math.inf]])
def test_refuses_what_has_no_statistics(bad):
    with pytest.raises(ValueError, match="statistics of"):
        Stats(bad)


@given(values)
def test_order(numbers):
    stats = Stats(numbers)
    assert (
        min(numbers) <= stats.percentile(5) <= stats.median <= stats.percentile(95) <= max(numbers)
    )


@given(values, st.floats(0.1, 10))
def test_scales_with_the_unit(numbers, factor):
    assert Stats(n * factor for n in numbers).median == pytest.approx(
        Stats(numbers).median * factor
    )


def test_interval_by_hand():
    low, high = median_interval([math.exp(x) for x in (1.0, 1.1, 0.9, 1.0, 1.0)])
    half = 2.776 * math.sqrt(math.pi / 2) * math.sqrt(0.02 / 4) / math.sqrt(5)
    assert (low, high) == (pytest.approx(math.exp(1 - half)), pytest.approx(math.exp(1 + half)))


def test_equal_windows_leave_no_doubt():
    assert median_interval([0.3] * 5) == (0.3, 0.3)


def test_times_are_positive():
    with pytest.raises(ValueError, match="not positive"):
        median_interval([1.0, 0.0])


@pytest.mark.parametrize("count", range(1, FEWEST_WINDOWS))
def test_few_windows_have_no_interval(count):
    assert median_interval([1.0, 1.1, 0.9, 1.0][:count]) is None


@given(st.lists(st.floats(1e-9, 1e3), min_size=FEWEST_WINDOWS, max_size=40))
def test_interval_holds_the_median(numbers):
    low, high = median_interval(numbers)
    assert 0 <= low <= Stats(numbers).median <= high


def test_interval_covers_the_truth_about_95_percent():
    source = random.Random(1)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([source.gauss(10, 1) for _ in range(5)])
        hits += low <= 10 <= high
    assert 0.93 <= hits / 2000 <= 0.99
