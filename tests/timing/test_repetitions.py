import itertools
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.timing.repetitions import (
    Budget,
    HostTimer,
    Repetition,
    Settling,
    Timed,
    drop_slow_clocks,
    interleave,
    summarise,
)


class ScriptedTimer:
    """Answers from a script of times, and notes what was asked."""

    resolution_s = 1e-3
    most_calls = 100

    def __init__(self, times, cold_factor=3.0):
        self.times, self.cold_factor, self.asked = times, cold_factor, []

    def time(self, call, calls):
        self.asked.append((call(), calls))
        return Timed(next(self.times), calls, 1980.0)

    def cold(self, call):
        self.asked.append((call(), "cold"))
        return Timed(self.cold_factor * next(self.times), 1, 1980.0)

    def settle(self, call, calls, best_s):
        self.asked.append((call(), calls, best_s))


BUDGET = Budget(warm_up_s=0.0, time_s=0.0, limit_s=60, least_rounds=4)


def test_contestants_alternate_and_both_temperatures_are_taken():
    timer = ScriptedTimer(itertools.repeat(1e-4))
    repetitions = interleave(
        {"mine": lambda: "mine", "theirs": lambda: "theirs"}, timer, BUDGET
    ).repetitions
    assert timer.asked[:4] == [("mine", 1), ("mine", 10), ("theirs", 1), ("theirs", 10)]  # warm-up
    assert timer.asked[4:7] == [("mine", 10, 1e-4), ("mine", 10), ("mine", "cold")]
    assert timer.asked[7:10] == [("theirs", 10, 1e-4), ("theirs", 10), ("theirs", "cold")]
    assert len(repetitions) == 4 * 2 * 2
    assert summarise(repetitions, "mine", "hot").median_s == 1e-4
    assert summarise(repetitions, "mine", "cold").median_s == pytest.approx(3e-4)


def test_who_comes_first_in_a_round_gains_nothing():
    class Rested(ScriptedTimer):
        def time(self, call, calls):
            # settled once in this round
            first = len([each for each in self.asked if len(each) == 3]) % 2
            return super().time(call, calls)._replace(time_s=1.0e-4 if first else 1.1e-4)

    timer = Rested(itertools.repeat(1e-4))
    for rounds in (4, 5):
        budget = Budget(0.0, 0.0, 60, least_rounds=rounds)
        repetitions = interleave(
            {"mine": lambda: "mine", "theirs": lambda: "theirs"}, timer, budget
        ).repetitions
        medians = [summarise(repetitions, name, "hot").median_s for name in ("mine", "theirs")]
        assert medians == pytest.approx([1.05e-4, 1.05e-4])


def test_every_round_has_inputs_of_its_own():
    asked = []
    timer = ScriptedTimer(itertools.repeat(1e-4))
    timer.asked = asked
    interleave({"mine": lambda: "mine"}, timer, BUDGET, refresh=lambda: asked.append("refreshed"))
    assert asked[2:6] == ["refreshed", ("mine", 10, 1e-4), ("mine", 10), ("mine", "cold")]
    assert asked.count("refreshed") == 4


def test_a_repetition_is_long_enough_by_the_time_of_one_call_among_many():
    """Alone the call takes four times as long, with a launch of its own: a quarter of the
    repetition would be made."""
    timer = ScriptedTimer(itertools.chain([2e-4], itertools.repeat(5e-5)))
    timer.resolution_s = 1e-3
    repetitions = interleave({"mine": lambda: None}, timer, BUDGET).repetitions
    hot = [one for one in repetitions if one.temperature == "hot"]
    assert hot
    assert all(one.calls * one.time_s >= timer.resolution_s for one in hot)


def test_a_repetition_that_the_device_shortened_says_how_many_calls_it_was_of():
    timer = ScriptedTimer(itertools.repeat(1e-5))
    timer.time = lambda call, calls: Timed(1e-5, min(calls, 7))
    repetitions = interleave({"mine": lambda: None}, timer, BUDGET).repetitions
    assert {one.calls for one in repetitions if one.temperature == "hot"} == {7}


def test_it_stops_early_once_all_has_settled():
    timer = ScriptedTimer(itertools.repeat(1e-4))
    repetitions = interleave(
        {"mine": lambda: None}, timer, Budget(0.0, 60, 60, least_rounds=2)
    ).repetitions
    assert max(one.round for one in repetitions) + 1 == Settling.least


def test_a_slow_call_is_taken_at_least_once():
    timer = ScriptedTimer(itertools.repeat(1.0))
    repetitions = interleave(
        {"mine": lambda: None}, timer, Budget(0.0, 0.0, 0.0, least_rounds=5)
    ).repetitions
    assert len(repetitions) == 2


def test_noise_that_keeps_falling_has_not_settled():
    settling = Settling()
    for time_s in (1.0, 2.0, 1.0, 2.0, 1.0, 2.0):
        settling.add(time_s)
    assert not settling.settled


@given(st.lists(st.floats(1e-6, 1e-3), min_size=5, max_size=40))
def test_settling_is_nvbench_s_rule(times):
    settling = Settling()
    for time_s in times:
        settling.add(time_s)
    noise = statistics.stdev(times) / statistics.fmean(times)
    if noise < 0.005:
        assert settling.settled
    elif len(times) <= Settling.history:
        assert not settling.settled


def test_repetitions_at_a_fallen_clock_are_dropped():
    taken = [
        Repetition("mine", "hot", i, 1e-3, 1, clock)
        for i, clock in enumerate((1980.0, 1980.0, 1400.0, None))
    ]
    assert [one.round for one in drop_slow_clocks(taken)] == [0, 1, 3]
    assert drop_slow_clocks([Repetition("mine", "hot", 0, 1e-3, 1, None)])


@pytest.mark.parametrize(
    ("spins", "made"), [([], 1), ([0.08, 0.02], 3), ([0.1] * 9, 3), ([0.001], 1)]
)
def test_a_repetition_waits_for_other_libraries_threads_not_for_ever(monkeypatch, spins, made):
    now, calls = [0.0], []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def call():
        now[0] += 0.01 + (spins[len(calls)] if len(calls) < len(spins) else 0)
        calls.append(now[0])

    HostTimer(1 << 20).settle(call, 1, best_s=0.01)
    assert len(calls) == made


def test_a_long_call_is_not_made_twice():
    def call():
        raise AssertionError("called")

    HostTimer(1 << 20).settle(call, 1, best_s=1.0)


@pytest.mark.parametrize("delay", [0.002, 0.01])
def test_the_host_timer_sees_a_known_delay(delay):
    timer = HostTimer(1 << 20)
    repetitions = interleave(
        {"sleeper": lambda: time.sleep(delay)}, timer, Budget(0.0, 0.05, 5)
    ).repetitions
    for temperature in ("hot", "cold"):
        # A sleep lasts at least as long as asked; a loaded machine makes it longer, never shorter.
        assert summarise(repetitions, "sleeper", temperature).median_s >= delay
