"""Ticks in powers of two: what fits stays, nothing touches, the first is never lost."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mfulab.lab.report.drawing import style, ticks


def drawn(values, inches: float, unit: str = "") -> list[tuple[str, float, float]]:
    """The labels of an axis of that width, each with its left and right edge in pixels."""
    with style.theme():
        figure = Figure(figsize=(inches, 2))
        axes = figure.subplots()
        axes.plot(values, [1] * len(values))
        ticks.doublings(axes, values, unit)
        figure.canvas.draw()
        labels = [label for label in axes.get_xticklabels() if label.get_text()]
        boxes = [label.get_window_extent() for label in labels]
    return [(label.get_text(), box.x0, box.x1) for label, box in zip(labels, boxes, strict=True)]


def words(values, inches: float, unit: str = "") -> list[str]:
    return [word for word, _, _ in drawn(values, inches, unit)]


SIZES = [64, 128, 256, 512, 1024, 2048]


def test_each_value_has_a_tick_where_there_is_room():
    assert words([1, 3, 8, 24], 6) == ["1", "3", "8", "24"]
    assert words(SIZES, 6) == [str(size) for size in SIZES]


def test_powers_of_two_stay_where_neighbours_would_touch():
    assert words([512, 1000, 1023, 1024, 2048], 3) == ["512", "1024", "2048"]


def test_narrow_axes_keep_each_second_or_third():
    assert words(SIZES, 2.4) == ["64", "256", "1024"]
    assert words(SIZES, 1.4) == ["64", "512"]


def test_the_baseline_of_ratios_stays():
    assert "1×" in words([2.0**power for power in range(-10, 11)], 3, "×")


@pytest.mark.parametrize("values", [[7], [5, 7]])
def test_few_values_are_enough(values):
    assert words(values, 4) == [str(value) for value in values]


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(1, 20_000), min_size=1, max_size=12), st.floats(0.8, 8))
def test_no_label_touches_another(values, inches):
    placed = drawn(sorted(values), inches)
    assert placed
    assert all(left > right + 2 for (_, _, right), (_, left, _) in itertools.pairwise(placed))
