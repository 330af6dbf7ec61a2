"""A machine with states: windows that met a slow one are measured again."""

import json
import math
import random
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfulab.lab.tables import replicates
from mfulab.timing.pace import Pace
from mfulab.timing.probe import Best, Probe, State, best_of, known_best, packed
from mfulab.timing.repetitions import (
    Budget,
    Repetition,
    Timed,
    disturbed_rounds,
    interleave,
    undisturbed,
)
from mfulab.timing.windows import WindowTimes, collect, counted

PRODUCT_S, COPY_S, TRUE_S = 3e-4, 1e-3, 0.010
BEST = Best(PRODUCT_S, COPY_S)
PACE = Pace(windows=2, window_s=0.4, warm_up_s=1.0, tolerance=0.05, patience_s=2.0)


class Machine:
    """Has states: `slow(now)` is the factor on all work, `noise` the relative spread within a
    state."""

    def __init__(self, slow, seed=0, noise=0.01, others=lambda now: 0.0):
        self.slow, self.random, self.noise, self.others = slow, random.Random(seed), noise, others
        self.now, self.taken_s = 0.0, 0.0

    def factor(self) -> float:
        return self.slow(self.now) * math.exp(self.random.gauss(0, self.noise))

    def _pass(self, seconds: float) -> None:
        self.taken_s += 2 * seconds * self.others(self.now)
        self.now += seconds

    def probe(self) -> State:
        state = State(
            self.now,
            PRODUCT_S * self.factor(),
            COPY_S * self.factor(),
            None,
            self.taken_s,
            2 * self.now,
        )
        self._pass(0.004)
        return state

    def window(self) -> WindowTimes:
        times = []
        while sum(times) < 0.4:
            times.append(TRUE_S * self.factor())
            self._pass(times[-1])
        return WindowTimes(sum(times), len(times), tuple(times))

    def measure(self, pace: Pace = PACE, best: Best = BEST):
        made = collect(self.window, pace, self.probe, best)
        return counted(
            made, pace.windows, best_of((state for window in made for state in window.states), best)
        )


def between(start: float, end: float, factor: float = 2.0):
    return lambda now: factor if start <= now < end else 1.0


def median(windows) -> float:
    return statistics.median(window.median_s for window in windows)


def test_a_quiet_machine_costs_no_further_window():
    kept, discarded = Machine(lambda now: 1.0).measure()
    assert (len(kept), len(discarded)) == (2, 0)


@pytest.mark.parametrize("seed", range(10))
def test_windows_in_a_slow_state_are_measured_again(seed):
    kept, discarded = Machine(between(0.2, 0.7), seed).measure()
    assert median(kept) == pytest.approx(TRUE_S, rel=0.05)
    assert len(kept) == 2
    assert discarded


def test_a_state_in_the_middle_of_a_process_is_not_taken_for_its_speed():
    """33 µs a product for minutes, then 68: the windows after the change do not count."""
    kept, _ = Machine(lambda now: 1.0 if now < 0.9 else 68 / 33).measure(
        Pace(2, 0.4, 1.0, 0.05, patience_s=2.0)
    )
    assert median(kept) == pytest.approx(TRUE_S, rel=0.05)


def test_a_state_that_lasts_is_told_and_ends_with_the_patience():
    machine = Machine(lambda now: 2.0)
    kept, discarded = machine.measure()
    assert all(window.is_disturbed(BEST) for window in kept)
    assert (len(kept), len(discarded)) == (2, 4)
    assert machine.now < 2 * 0.42 + PACE.patience_s + 0.1


def test_without_patience_nothing_is_measured_again_and_all_is_told():
    kept, discarded = Machine(lambda now: 2.0).measure(Pace(2, 0.4, 1.0, 0.05, patience_s=0.0))
    assert (len(kept), len(discarded)) == (2, 0)
    assert all(window.is_disturbed(BEST) for window in kept)


def test_other_processes_disturb_a_window_that_the_probe_missed():
    kept, discarded = Machine(
        lambda now: 1.0, others=lambda now: 0.5 if 0.1 < now < 0.3 else 0.0
    ).measure()
    assert (len(kept), len(discarded)) == (2, 1)


def test_a_single_outlier_among_steps_is_no_state():
    kept, discarded = Machine(between(0.2, 0.21, 20.0)).measure()
    assert (len(kept), len(discarded)) == (2, 0)


def test_without_a_best_the_process_is_its_own_measure():
    kept, discarded = Machine(between(0.0, 0.3)).measure(best=Best())
    assert (len(kept), len(discarded)) == (2, 1)
    assert median(kept) == pytest.approx(TRUE_S, rel=0.05)


def test_windows_go_on_until_they_are_precise_or_patience_is_over():
    def windows(noise: float, precision: float | None) -> int:
        pace = Pace(2, 0.4, 1.0, 0.05, patience_s=8.0, precision=precision)
        return len(collect(Machine(lambda now: 1.0, noise=noise).window, pace))

    assert windows(0.01, None) == 2
    assert windows(0.01, 0.02) == 5  # the fewest whose spread says something
    assert 5 < windows(0.2, 0.02) <= 22
    assert windows(0.5, 0.001) == 2 + 19


@given(
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_as_many_windows_count_as_were_asked_for_or_made(slow, wanted):
    best = BEST
    made = [
        WindowTimes(0.4, 1, (0.4,), (State(at, PRODUCT_S * (1 + is_slow), COPY_S),) * 2)
        for at, is_slow in enumerate(slow)
    ]
    kept, discarded = counted(made, wanted, best)
    assert len(kept) + len(discarded) == len(made)
    assert len(kept) >= min(wanted, len(made))
    assert not any(window.is_disturbed(best) for window in kept) or len(kept) == min(
        wanted, len(made)
    )
    assert all(window.is_disturbed(best) for window in discarded)


class StatefulTimer:
    """Calls on a machine with states; every call moves its time."""

    resolution_s, most_calls = 5e-3, 1000

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def time(self, call, calls):
        each = 1e-4 * self.machine.factor()
        self.machine._pass(each * calls)
        return Timed(each, calls)

    def cold(self, call):
        return self.time(call, 1)

    def settle(self, call, calls, best_s): ...


@pytest.fixture
def timed(monkeypatch):
    def measure(slow, patience_s: float, precision=None):
        machine = Machine(slow)
        monkeypatch.setattr("mfulab.timing.repetitions.time.perf_counter", lambda: machine.now)
        budget = Budget(0.0, 0.4, 10.0, 5, patience_s, precision)
        best = BEST
        return interleave(
            {"mine": lambda: None}, StatefulTimer(machine), budget, watch=machine.probe, best=best
        )

    return measure


def test_disturbed_rounds_of_a_matmul_do_not_count(timed):
    found = timed(between(0.0, 0.3), patience_s=1.0)
    assert found.repeated > 0
    seen = statistics.median(one.time_s for one in found.repetitions)
    assert seen == pytest.approx(1e-4, rel=0.05)
    assert not any(one.disturbed for one in found.repetitions)


def test_a_matmul_that_stays_disturbed_says_so(timed):
    found = timed(lambda now: 2.0, patience_s=0.3)
    assert found.repeated == 0
    assert all(one.disturbed for one in found.repetitions)


def test_a_probe_asked_too_soon_stands_for_the_rounds_up_to_the_next():
    quiet, slow = State(0, PRODUCT_S, COPY_S), State(1, 2 * PRODUCT_S, COPY_S)
    best = best_of([quiet])
    assert disturbed_rounds([quiet, quiet, quiet, slow, slow, quiet], best) == {0, 1, 2, 3, 4}
    assert disturbed_rounds([quiet, quiet, State(2, PRODUCT_S, COPY_S)], best) == set()
    repetitions = [Repetition("mine", "hot", number, 1e-3, 1, None) for number in range(3)]
    assert [one.round for one in undisturbed(repetitions, {1}, 2)] == [0, 2]
    assert [one.disturbed for one in undisturbed(repetitions, {1}, 3)] == [False, True, False]


def test_the_probe_runs_here_and_keeps_to_its_share_of_the_time():
    probe = Probe(torch.device("cpu"))
    first = probe()
    assert probe() is first  # asked at once, it would cost too much
    assert min(first.product_s, first.copy_s) > 0
    assert probe.spent_s > 0
    text = packed([first, first, probe.again()], 2)
    assert len(json.loads(text)["at_s"]) == 2
    threads, read = replicates.probes({"probes": text})
    assert (threads, len(read)) == (2, 2)


def test_the_best_of_a_machine_is_read_from_its_environment(tmp_path):
    run, row = tmp_path / "here/profile_step/a", tmp_path / "here/environment/all/row.csv"
    assert known_best(run) == Best()
    row.parent.mkdir(parents=True)
    row.write_text("probe_product_s,probe_copy_s\n0.0003,0.001\n")
    assert known_best(run) == Best(3e-4, 1e-3)
    row.write_text("probe_product_s,probe_copy_s\n,\n")
    assert known_best(run) == Best()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"at_s": [1], "product_s": ["x"], "copy_s": [1]}', '{"at_s": 3}']
)
def test_probes_that_cannot_be_read_are_none(text):
    assert replicates.probes({"probes": text}) == (0, [])
    assert replicates.slowdown({"hardware": "x", "probes": text}, {}) == 1.0
