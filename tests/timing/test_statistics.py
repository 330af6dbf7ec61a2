"""Statistics against hand-computed cases and laws that hold for any values."""

import math
import random
from statistics import NormalDist

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.timing.statistics import (
    QUANTILE_ERROR,
    UNDISTURBED,
    Stats,
    fast_variance,
    interval_half_width,
    mean_half_width,
    median_interval,
    relative_half_width,
    undisturbed,
    undisturbed_half_width,
    usual_variance,
)

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
    found = Stats(n * factor for n in numbers).median
    assert found == pytest.approx(Stats(numbers).median * factor)


def test_interval_by_hand():
    low, high = median_interval([math.exp(x) for x in (1.0, 1.1, 0.9, 1.0, 1.0)])
    half = 2.776 * math.sqrt(math.pi / 2) * math.sqrt(0.02 / 4) / math.sqrt(5)
    assert (low, high) == (pytest.approx(math.exp(1 - half)), pytest.approx(math.exp(1 + half)))


def test_equal_windows_leave_no_doubt():
    assert median_interval([0.3] * 5) == (0.3, 0.3)


def test_times_are_positive():
    with pytest.raises(ValueError, match="not positive"):
        median_interval([1.0, 0.0])


@pytest.mark.parametrize("count", range(1, 5))
def test_few_windows_have_no_interval(count):
    assert median_interval([1.0, 1.1, 0.9, 1.0][:count]) is None


@given(st.lists(st.floats(1e-9, 1e3), min_size=5, max_size=40))
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


def of_t(value: float, degrees: int) -> float:
    """Distribution function of Student's t."""
    below = mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + value**2), regularized=True)
    return 1 - below / 2


def of_chi_square(value: float, degrees: int) -> float:
    """Distribution function of χ²."""
    return mpmath.gammainc(degrees / 2, 0, value / 2, regularized=True)


@pytest.mark.parametrize("degrees", range(1, 31))
def test_the_quantiles_of_student_are_rounded_to_three_places(degrees):
    quantile = interval_half_width(1.0, degrees, 1.0)
    assert of_t(quantile - 0.0006, degrees) < 0.975 < of_t(quantile + 0.0006, degrees)


def test_many_windows_take_the_quantile_of_a_normal():
    assert interval_half_width(1.0, 31, 1.0) == round(NormalDist().inv_cdf(0.975), 2)


@pytest.mark.parametrize("degrees", [*range(1, 12), 30, 100])
def test_equal_runs_have_the_variance_that_their_median_tells(degrees):
    """Sample variances lie around the true one as χ² ÷ degrees does: the median run tells it."""
    median = float(mpmath.findroot(lambda x: of_chi_square(x, degrees) - 0.5, degrees - 0.6))
    seen = (median / degrees, degrees)
    for runs in (8, 9):
        assert usual_variance([seen] * runs) == pytest.approx(1.0, rel=3e-3)
    assert usual_variance([seen] * 7) is None


def test_the_error_of_a_quantile_is_that_of_a_normal():
    share = UNDISTURBED / 100
    density = NormalDist().pdf(NormalDist().inv_cdf(share))
    assert pytest.approx(math.sqrt(share * (1 - share)) / density, rel=1e-4) == QUANTILE_ERROR


def test_a_half_width_by_hand():
    """A variance of 4 by 2 degrees beside a usual one of 1 by 4 is one of 2 by 6 degrees."""
    assert interval_half_width(4.0, 2, 16.0) == pytest.approx(4.303 * math.sqrt(4 / 16))
    mixed = interval_half_width(4.0, 2, 16.0, error=3.0, usual=1.0)
    assert mixed == pytest.approx(2.447 * 3 * math.sqrt(2 / 16))


def test_the_half_width_of_a_mean_by_hand():
    assert mean_half_width([4, 1, 3, 2, 10]) == pytest.approx(2.776 * math.sqrt(12.5 / 5))
    assert mean_half_width([4]) is None


def test_a_usual_variance_stands_beside_that_of_the_times():
    """Logarithms 0, 1 and 2 have the variance 1 by 2 degrees; with 0.25 by 4 it is 0.5 by 6."""
    times = [1.0, math.e, math.e**2]
    alone = 4.303 * math.sqrt(math.pi / 2 / 3)
    assert relative_half_width(times) == pytest.approx(alone)
    beside = 2.447 * math.sqrt(math.pi / 2 * 0.5 / 3)
    assert relative_half_width(times, 0.25) == pytest.approx(beside)
    assert relative_half_width(times[:1], 0.25) is None


@pytest.mark.parametrize(
    ("logarithms", "variance", "degrees"),
    [
        ([0.0], 0.0, 0),
        ([0.0, 2.0], 2.0, 1),
        ([0.0, 1.0, 2.0, 9.0], 50 / 3, 3),
        ([-2.0, -1.0, 0.0, 5.0, 9.0], 2 * (4 + 1) / 4, 2),
        ([-3.0, -1.0, -1.0, 1.0, 5.0, 9.0], 2 * (9 + 1 + 1) / 5, 3),
    ],
)
def test_the_faster_half_tells_the_spread_of_five_processes(logarithms, variance, degrees):
    found = fast_variance([math.exp(value) for value in logarithms])
    assert found == (pytest.approx(variance), degrees)


def test_the_undisturbed_time_is_a_low_quantile_with_its_half_width():
    times = [math.exp(value) for value in (-2.0, -1.0, 0.0, 5.0, 9.0)]
    assert undisturbed(range(11)) == 1
    found = undisturbed_half_width(times)
    assert found == pytest.approx(4.303 * QUANTILE_ERROR * math.sqrt(2.5 / 5))
    seen = undisturbed_half_width(times, 0.25)
    assert seen == pytest.approx(2.447 * QUANTILE_ERROR * math.sqrt(1.0 / 5))
    assert undisturbed_half_width(times[:2], 0.25) is not None
    assert undisturbed_half_width(times[:1], 0.25) is None
