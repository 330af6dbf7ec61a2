"""Warm-up and windows on a clock that only moves when a step runs."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from mfulab.device.samplers.reading import Reading
from mfulab.timing import windows
from mfulab.timing.clocks import EventClock, HostClock
from mfulab.timing.pace import Pace
from mfulab.timing.windows import measure_window, observe, warm_up


class Machine:
    """Steps take the times that `script` gives, the last one for ever; `now` is the time."""

    resolution_s = 0.0

    def __init__(self, *script: float) -> None:
        self.script, self.now, self.calls = list(script), 0.0, 0
        self._marks: list[float] = []

    def step(self) -> None:
        self.now += self.script[min(self.calls, len(self.script) - 1)]
        self.calls += 1

    def synchronise(self) -> None: ...

    def mark(self) -> None:
        self._marks.append(self.now)

    def intervals(self) -> list[float]:
        marks, self._marks = self._marks, []
        return [b - a for a, b in itertools.pairwise(marks)]


@pytest.fixture
def machine(monkeypatch):
    def make(*script: float) -> Machine:
        made = Machine(*script)
        monkeypatch.setattr(windows.time, "perf_counter", lambda: made.now)
        return made

    return make


PACE = Pace(windows=5, window_s=1.0, warm_up_s=2.0, tolerance=0.05)


def test_first_call_is_apart_and_steadiness_is_found(machine):
    made = machine(7.0, 0.5, 0.3, 0.2, 0.1)
    warm = warm_up(made.step, made, PACE)
    assert warm.first_call_s == 7.0
    assert warm.steady
    assert warm.chunks_s[-1] == pytest.approx(0.1)


def test_a_step_that_never_settles_is_said_to_be_unsteady(machine):
    made = machine(*[0.1 + 0.03 * (n % 7) for n in range(10000)])
    warm = warm_up(made.step, made, PACE)
    assert not warm.steady
    assert warm.total_s == pytest.approx(PACE.warm_up_s, abs=1)


def test_slow_steps_are_judged_by_two(machine):
    made = machine(5.0, 3.0, 3.0)
    warm = warm_up(made.step, made, PACE)
    assert (warm.steady, made.calls) == (True, 3)


# at 0.25 µs: 1 % of 0.3 s
@pytest.mark.parametrize(("faults", "counts"), [(0, True), (10_000, True), (12_000, False)])
def test_what_came_before_settling_counts_without_page_faults(machine, monkeypatch, faults, counts):
    made = machine(7.0, 0.3)
    monkeypatch.setattr(windows, "page_faults", lambda: faults * made.calls)
    warm = warm_up(made.step, made, PACE, settle=lambda: made.script.__setitem__(1, 0.1))
    assert (warm.unsettled_s, warm.unsettled_faults) == (pytest.approx(0.3), faults)
    assert (warm.chunks_s[0] == pytest.approx(0.3)) == counts
    assert (warm.steady, warm.chunks_s[-1]) == (True, pytest.approx(0.1))


def test_a_clock_that_drifts_is_not_steady(machine):
    made = machine(0.01)
    clocks = (1000 * 1.1**n for n in itertools.count())
    assert not warm_up(made.step, made, PACE, lambda: next(clocks)).steady


def test_a_clock_that_jitters_is(machine):
    made = machine(0.01)
    clocks = itertools.cycle([1700, 1755, 1680])
    assert warm_up(made.step, made, PACE, lambda: next(clocks)).steady


def test_window_is_long_enough_and_counts_steps(machine):
    made = machine(0.3)
    window = measure_window(made.step, made, 1.0, 0.3)
    assert window.steps == 4
    assert window.length_s == pytest.approx(1.2)
    assert window.step_times_s == pytest.approx([0.3] * 4)


def test_marks_are_no_denser_than_the_clock_resolves(machine):
    made = machine(0.001)
    made.resolution_s = 0.01
    window = measure_window(made.step, made, 0.1, 0.001)
    assert window.steps == 100
    assert len(window.step_times_s) == 10
    assert window.median_s == pytest.approx(0.001)


@pytest.mark.parametrize("turn", [2, 3, 4, 7])
@pytest.mark.parametrize("resolution_s", [0.0, 0.05])
def test_steps_that_wait_in_turn_have_the_mean_of_a_turn(machine, turn, resolution_s):
    """Of a loader of n processes each nth step waits for all of them: its steps' median would be
    the free ones'."""
    made = machine(*[0.02, *[0.001] * (turn - 1)] * 2000)
    made.resolution_s = resolution_s
    window = measure_window(made.step, made, 1.0, 0.001, turn=turn)
    assert window.median_s == pytest.approx((0.02 + 0.001 * (turn - 1)) / turn)
    assert len(set(map(round, [time * 1e9 for time in window.step_times_s]))) == 1


class Watcher:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def start(self) -> None:
        self.log.append(f"start {self.name}")

    def stop(self) -> dict[str, Reading]:
        self.log.append(f"stop {self.name}")
        return {"busy_percent": Reading(50.0, "%", self.name)}


class InFlight(Watcher):
    """Notes how many calls were made as it is asked."""

    def __init__(self, machine: Machine) -> None:
        super().__init__("", [])
        self.machine, self.calls, self.left = machine, [], []

    def in_flight(self) -> None:
        self.calls.append(self.machine.calls)


def test_a_sampler_that_wants_to_is_asked_while_steps_are_in_flight(machine, monkeypatch):
    """Twice a window: behind its first marked steps, and before its last ones have ended."""
    made = machine(1 / 1024)
    made.resolution_s = 1 / 256
    sampler = InFlight(made)
    monkeypatch.setattr(made, "wait_until_near_end", sampler.left.append, raising=False)
    seen = observe(made.step, made, PACE, [sampler])
    before = made.calls - seen.steps
    begins = [before + 1024 * window for window in range(5)]
    assert seen.steps == 5 * 1024
    assert sampler.calls[::2] == [begin + 4 for begin in begins]
    assert sampler.calls[1::2] == [begin + 1024 for begin in begins]
    assert sampler.left == [math.ceil(windows.IN_FLIGHT_S * 256)] * 5


def test_samplers_bracket_the_windows_and_the_first_is_preferred(machine):
    made, log = machine(0.125), []
    seen = observe(made.step, made, PACE, [Watcher("strict", log), Watcher("loose", log)])
    assert log == ["start strict", "start loose", "stop loose", "stop strict"]
    assert seen.readings["busy_percent"].source == "strict"
    assert (len(seen.windows), seen.steps) == (5, 40)
    assert seen.time_s == pytest.approx(0.125)


@pytest.mark.parametrize(("others_s", "steps"), [(0.125, 8), (0.25, 4)])
def test_a_disturbed_warm_up_shortens_the_first_window_alone(machine, others_s, steps):
    made = machine(0.5, 0.5, 0.5, 0.5, 0.125)  # the warm-up takes four steps
    seen = observe(made.step, made, PACE, agree=lambda value: others_s if value == 0.125 else value)
    assert [window.steps for window in seen.windows] == [2, steps, steps, steps, steps]


def test_host_clock_gives_its_intervals_once():
    clock = HostClock()
    for _ in range(3):
        clock.mark()
    assert len(clock.intervals()) == 2
    assert clock.intervals() == []


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_marks_lie_on_the_device_that_is_watched_not_the_current_one(monkeypatch, kind):
    class Event:
        def __init__(self, enable_timing):
            self.stream = None

        def record(self, stream="of the current device"):
            self.stream = stream

        def elapsed_time(self, later):
            return 1.0

    waited = []
    module = SimpleNamespace(
        Event=Event, synchronize=lambda device="the current device": waited.append(device)
    )
    if kind == "cuda":
        module.current_stream = lambda device: f"of {device}"
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    clock = EventClock(torch.device(kind, 1))
    clock.mark()
    (event,) = clock._marks
    clock.intervals()
    only = kind == "mps"
    assert event.stream == ("of the current device" if only else "of cuda:1")
    assert waited == ["the current device" if only else torch.device("cuda", 1)]
