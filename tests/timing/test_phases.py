"""Phases of a step: each is what passed since the mark before it, and together they are the step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.timing.phases import phase_readings


class Scripted:
    """A clock whose intervals are given: each mark is one of them later than the last."""

    name, resolution_s = "script", 0.0

    def __init__(self, intervals: list[float]) -> None:
        self.left, self.seen, self.started = list(intervals), [], False

    def synchronise(self) -> None:
        """Nothing to wait for."""

    def mark(self) -> None:
        if self.started:
            self.seen.append(self.left.pop(0))
        self.started = True

    def intervals(self) -> list[float]:
        return self.seen


def step(mark=lambda phase: None) -> None:
    for _ in range(2):  # micro-batches
        mark("forward")
        mark("backward")
    mark("optimiser")


def measured(intervals: list[float], length_s: float, estimate_s: float) -> tuple[dict[str, float], float]:
    """Seconds of each phase, and their sum ÷ the step."""
    readings = phase_readings(step, step, Scripted(intervals), length_s, estimate_s)
    quotient = readings.pop("phases_percent").value / 100
    return {name.removesuffix("_ms"): reading.value / 1e3 for name, reading in readings.items()}, quotient


@given(st.lists(st.floats(1e-6, 10), min_size=6, max_size=6))
def test_the_phases_of_a_step_sum_to_it(intervals):
    *marked, unmarked = intervals
    found, quotient = measured(intervals, length_s=1.0, estimate_s=2.0)
    assert sum(found.values()) == pytest.approx(sum(marked))
    assert found["forward"] == pytest.approx(intervals[0] + intervals[2])
    assert list(found) == ["forward", "backward", "optimiser"]
    assert quotient == pytest.approx(sum(marked) / unmarked)


def test_a_disturbed_step_moves_no_median():
    quiet, disturbed = [1.0, 2.0, 1.0, 2.0, 3.0, 9.0], [90.0, 2.0, 1.0, 2.0, 3.0, 30.0]
    found, quotient = measured([*quiet, *disturbed, *quiet], length_s=0.1, estimate_s=0.3)
    assert found == {"forward": 2.0, "backward": 4.0, "optimiser": 3.0}
    assert quotient == 1.0


def test_a_step_twice_as_slow_under_marks_says_so_on_a_machine_that_slows_down():
    intervals = [2.0, 2.0, 2.0, 2.0, 2.0, 5.0, *(10 * each for each in (2.0, 2.0, 2.0, 2.0, 2.0, 5.0))]
    assert measured(intervals, length_s=40.0, estimate_s=10.0)[1] == 2.0
