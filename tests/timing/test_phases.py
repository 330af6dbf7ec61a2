"""Phases of a step: each is what passed since the mark before it; their sum is the step."""

import itertools
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from mfulab.timing.clocks import HostClock
from mfulab.timing.phases import phase_readings
from mfulab.timing.windows import measure_window


class Scripted(HostClock):
    """A clock that goes on only by what a step says that it took."""

    name = "script"

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def mark(self) -> None:
        self._marks.append(self.now)


def measured(step, clock, length_s: float, estimate_s: float) -> tuple[dict[str, float], float]:
    """Seconds of each phase, and their sum ÷ the step."""
    readings = phase_readings(step, step, clock, length_s, estimate_s)
    quotient = readings.pop("phases_percent").value / 100
    return {
        name.removesuffix("_ms"): reading.value / 1e3 for name, reading in readings.items()
    }, quotient


def scripted(
    times, length_s: float, estimate_s: float, marking: float = 1.0
) -> tuple[dict[str, float], float]:
    """Phases of steps of two micro-batches and an update; `times` gives the five parts of each,
    longer under marks."""
    clock = Scripted()

    def step(mark=None) -> None:
        for phase, seconds in zip(
            ["forward", "backward"] * 2 + ["optimiser"], next(times), strict=True
        ):
            clock.now += seconds * (marking if mark else 1.0)
            if mark:
                mark(phase)

    return measured(step, clock, length_s, estimate_s)


def fed(
    period: int, wait_s: float, first: int, length_s: float, estimate_s: float
) -> tuple[dict[str, float], float]:
    """Phases of a step of 1 s whose every `period`th batch makes it wait."""
    clock, count = Scripted(), itertools.count(first)

    def step(mark=lambda phase: None) -> None:
        clock.now += 0.0 if next(count) % period else wait_s
        mark("other")
        clock.now += 1.0
        mark("forward")

    return measured(step, clock, length_s, estimate_s)


@given(st.lists(st.floats(1e-6, 10), min_size=5, max_size=5), st.floats(1e-6, 10))
def test_the_phases_of_a_step_sum_to_it(parts, unmarked):
    found, quotient = scripted(iter([parts, [unmarked, 0, 0, 0, 0]]), length_s=1.0, estimate_s=3.0)
    assert sum(found.values()) == pytest.approx(sum(parts))
    assert found["forward"] == pytest.approx(parts[0] + parts[2])
    assert list(found) == ["forward", "backward", "optimiser"]
    assert quotient == pytest.approx(sum(parts) / unmarked)


@given(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]),
    st.floats(0, 1e3),
    st.integers(0, 15),
    st.integers(96, 900),
)
def test_phases_are_a_mean_steps_whatever_the_period_of_the_loader(period, wait_s, first, steps):
    found, quotient = fed(period, wait_s, first, length_s=steps, estimate_s=1.0)
    assert quotient == pytest.approx(1)
    assert found == pytest.approx({"other": wait_s / period, "forward": 1.0})


@given(st.sampled_from([2, 4]), st.floats(0, 1e3), st.integers(0, 3), st.floats(0.1, 0.5))
def test_of_long_steps_a_few_suffice_for_pairs_and_fours(period, wait_s, first, estimate_s):
    found, quotient = fed(period, wait_s, first, length_s=0.1, estimate_s=estimate_s)
    assert quotient == pytest.approx(1)
    assert found["other"] == pytest.approx(wait_s / period)


@given(st.integers(5, 20), st.integers(0, 19))
def test_a_period_that_divides_no_block_is_off_by_little(period, first):
    _, quotient = fed(period, 1e6, first, length_s=5000, estimate_s=1.0)
    assert quotient == pytest.approx(1, rel=0.1)


@given(st.integers(0, 4), st.sampled_from([1, 2, 4]))
def test_disturbed_blocks_move_nothing(block, period):
    quiet, disturbed = [1.0, 2.0, 1.0, 2.0, 3.0], [9.0, 90.0, 4.0, 7.0, 30.0]
    times = (disturbed if place // 96 == block else quiet for place in itertools.count())
    found, quotient = scripted(times, length_s=5 * 96 * 9.0, estimate_s=9.0)
    assert found == pytest.approx({"forward": 2.0, "backward": 4.0, "optimiser": 3.0})
    assert quotient == pytest.approx(1)


@pytest.mark.parametrize("steps", [4, 24, 500])
def test_a_step_twice_as_slow_under_marks_says_so_on_a_machine_that_slows_down(steps):
    times = ([2.0 + place, 1.0, 1.0, 1.0, 1.0] for place in itertools.count())
    found = scripted(times, length_s=10.0 * steps, estimate_s=10.0, marking=2.0)[1]
    assert found == pytest.approx(2, rel=0.02)


class Slow(Dataset):
    """Samples that take a while to draw, and no core."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.008)
        return torch.zeros(1)


@pytest.mark.slow
def test_a_real_loader_of_two_processes_delivers_in_pairs_and_phases_add_up():
    batches = iter(DataLoader(Slow(), num_workers=2))

    def step(mark=lambda phase: None) -> None:
        next(batches)
        mark("other")
        until = time.perf_counter() + 1e-3
        while time.perf_counter() < until:
            pass
        mark("forward")

    clock = HostClock()
    window = measure_window(step, clock, 0.2, 0.004)
    found, quotient = measured(step, clock, length_s=0.8, estimate_s=0.004)
    assert quotient == pytest.approx(1, abs=0.4)
    assert sum(found.values()) == pytest.approx(window.length_s / window.steps, rel=0.5)
    assert found["forward"] < found["other"]
