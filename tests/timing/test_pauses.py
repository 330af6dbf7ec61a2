"""A process that is stopped, or moved to other CPUs, within its windows."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from mfulab.core.said import Said
from mfulab.device import system
from mfulab.device.interruptions import circumstances, heard, pauses
from mfulab.device.samplers.reading import Reading, sampling
from mfulab.timing.clocks import HostClock
from mfulab.timing.pace import Pace
from mfulab.timing.probe import Best, State
from mfulab.timing.windows import WindowTimes, measure_window, observe

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no SIGCONT")
BEST = Best(1.0, 1.0)
STATE = State(0.0, 1.0, 1.0)


def stop(seconds):
    """Stops this process; another one lets it go on."""
    resume = f"sleep {seconds}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["/bin/sh", "-c", resume]):
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0)  # where Python calls the handler


def test_a_window_knows_that_its_process_was_stopped():
    steps = iter(range(100))

    def step():
        time.sleep(0.001)
        if next(steps) == 3:
            stop(0.2)

    with heard():
        paused = measure_window(step, HostClock(), 0.01, 0.001)
        quiet = measure_window(step, HostClock(), 0.01, 0.001)
    assert (paused.pauses, quiet.pauses) == (1, 0)


def test_a_window_with_a_pause_is_disturbed_where_windows_are_judged():
    for pauses_, is_disturbed in ((0, False), (1, True)):
        window = WindowTimes(1.0, 1, (1.0,), (STATE, STATE), pauses_)
        assert window.is_disturbed(BEST) is is_disturbed
        assert not WindowTimes(1.0, 1, (1.0,), None, pauses_).is_disturbed(BEST)


def test_a_handler_of_before_is_there_again_and_a_thread_hears_nothing():
    handler = signal.getsignal(signal.SIGCONT)
    before = pauses()

    def listen():
        with heard():
            os.kill(os.getpid(), signal.SIGCONT)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert pauses() == before
    with heard():
        os.kill(os.getpid(), signal.SIGCONT)
        time.sleep(0)
    assert pauses() == before + 1
    assert signal.getsignal(signal.SIGCONT) == handler


class Bracket:
    """A sampler whose reading is the number of pauses within it."""

    def __init__(self):
        self.begins = []

    def start(self):
        self.begins.append(pauses())

    def stop(self):
        within = pauses() - self.begins[-1]
        return {
            "pauses": Reading(within, "", "test"),
            "power_w": Reading(None, "W", "test", reason=Said("no_counter")),
        }


@pytest.fixture
def now(monkeypatch):
    """Seconds of a clock that steps move: as many in a window on a busy machine."""
    seconds = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: seconds[0])
    for module in ("windows", "clocks"):
        monkeypatch.setattr(f"mfulab.timing.{module}.time", clock)
    return seconds


def watched(now, pauses_in):
    """Windows of a step of 2 ms; this process is stopped in the calls `pauses_in`."""
    calls = itertools.count()

    def step():
        now[0] += 0.002
        if next(calls) in pauses_in:
            stop(0.1)

    pace = Pace(windows=2, window_s=0.1, warm_up_s=0.01, tolerance=0.5)
    bracket = Bracket()
    with heard():
        return observe(step, HostClock(), pace, [bracket]), bracket


def test_readings_and_windows_hold_no_pause(now):
    """A pause within the windows: all are measured again, under the samplers too."""
    seen, bracket = watched(now, {25})
    assert sum(window.pauses for window in (*seen.windows, *seen.discarded)) == 0
    assert seen.readings["pauses"].value == 0
    assert len(bracket.begins) == 2


def test_readings_with_a_pause_in_them_are_empty_and_say_so(now):
    """One within each attempt."""
    seen, bracket = watched(now, {25, 125})
    assert seen.readings["pauses"].value is None
    assert seen.readings["pauses"].reason.key == "stopped_meanwhile"
    assert seen.readings["power_w"].reason.key == "no_counter"
    assert len(bracket.begins) == 2


def test_readings_over_other_cpus_than_at_first_are_empty_and_say_so(monkeypatch):
    allowed = iter([frozenset({0, 1, 2, 5}), frozenset({1})])
    monkeypatch.setattr(system, "affinity", lambda: next(allowed))
    with sampling([Bracket()]) as readings:
        pass
    [read] = readings
    assert read["pauses"].value is None
    assert read["pauses"].reason.numbers == {"before": "0-2,5", "now": "1"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="binds no process to CPUs")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="has one CPU")
def test_a_process_that_is_moved_to_another_cpu_knows_it():
    before, allowed = circumstances(), os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert before.changes().key == "moved_meanwhile"
    finally:
        os.sched_setaffinity(0, allowed)
    assert before.changes() is None
