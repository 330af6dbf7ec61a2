"""The GPU timer's rules, with events and a spinning kernel that obey a clock of the test's own."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nvml_stand_in import Gpu, StandIn

from mfulab.device import gpu
from mfulab.device.vendors import nvml
from mfulab.timing import device_timer
from mfulab.timing.device_timer import DeviceTimer, spin_clocks_per_s

LAST_CACHE = 48 << 20

CYCLES_PER_S = 1e9
QUEUE = 1000


class FakeDevice:
    """A stream: work queued on it runs after what is there, as the host's clock goes on by what the
    host does.

    A launch waits where the queue is full.
    """

    def __init__(self):
        self.host_s, self.free_at_s = 100.0, 100.0
        self.cycles_per_s = CYCLES_PER_S
        self.queue = deque(maxlen=QUEUE)

    def enqueue(self, seconds):
        self.free_at_s = max(self.free_at_s, self.host_s) + seconds

    def launch(self, host_s, device_s):
        self.host_s += host_s
        if len(self.queue) == QUEUE:
            self.host_s = max(self.host_s, self.queue[0])
        self.enqueue(device_s)
        self.queue.append(self.free_at_s)

    def event(self, enable_timing=False):
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.enqueue(0.0)
        self.at_s = self.device.free_at_s

    def query(self):
        return self.device.host_s >= self.at_s

    def synchronize(self):
        self.device.host_s = max(self.device.host_s, self.at_s)

    def elapsed_time(self, other):
        return (other.at_s - self.at_s) * 1e3


@pytest.fixture
def device(monkeypatch):
    return installed(monkeypatch)


def installed(monkeypatch):
    fake = FakeDevice()
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    monkeypatch.setattr(
        device_timer.vendors,
        "of_device",
        lambda device: SimpleNamespace(last_cache_bytes=lambda _: LAST_CACHE),
    )
    monkeypatch.setattr(device_timer, "clock_reader", lambda device: lambda: 1755)
    monkeypatch.setattr(
        torch.cuda, "_sleep", lambda cycles: fake.enqueue(cycles / fake.cycles_per_s), raising=False
    )
    monkeypatch.setattr(device_timer.time, "perf_counter", lambda: fake.host_s)
    return fake


@pytest.fixture
def timer(device):
    return made()


def made():
    return DeviceTimer(torch.device("cpu"))  # where its scratch lies


def test_the_spinning_kernel_s_speed_is_measured(timer):
    assert timer._spin_per_s == pytest.approx(CYCLES_PER_S)


def test_a_cold_call_follows_a_write_of_more_than_the_last_cache(timer):
    assert timer._scratch.numel() >= 2 * LAST_CACHE


def test_a_held_stream_hides_a_slow_host(timer, device):
    """Launches take the host ten times as long as the device: without the hold the gaps would be
    counted."""

    def call():
        device.launch(host_s=1e-3, device_s=1e-4)

    for _ in range(2):  # the first hold is a guess, too short: made again
        assert timer.time(call, 20) == (pytest.approx(1e-4), 20, 1755, True)


def test_a_call_that_synchronises_is_timed_as_it_is_after_three_voids(timer, device):
    calls = []

    def call():
        calls.append(device.host_s)
        device.launch(host_s=1e-3, device_s=1e-4)
        device.host_s = max(device.host_s, device.free_at_s)

    answers = [timer.time(call, 5) for _ in range(2)]
    assert len(calls) == 5 * (device_timer.MOST_VOIDS + 2)
    assert all(answer.time_s >= 1e-4 and not answer.held for answer in answers)


@settings(max_examples=30, deadline=None)
@given(host_s=st.floats(1e-6, 1e-4), slower=st.floats(1.2, 50), calls=st.integers(1, 5000))
def test_a_long_group_of_short_calls_has_no_gap_where_the_host_is_faster(host_s, slower, calls):
    with pytest.MonkeyPatch.context() as patched:
        device = installed(patched)
        found = made().time(lambda: device.launch(host_s, slower * host_s), calls)
    assert (found.time_s, found.calls, found.held) == (pytest.approx(slower * host_s), calls, True)


@pytest.mark.parametrize("pause_at", [None, 700, 1900])
def test_a_group_in_which_the_device_caught_up_is_made_again(timer, device, pause_at):
    """The host pauses for longer than all that is queued would take: a gap in the group, whose time
    does not count."""
    calls = []

    def call():
        calls.append(device.host_s)
        device.launch(host_s=1e-6 if len(calls) != pause_at else 1.0, device_s=1e-4)

    assert timer.time(call, 2000) == (pytest.approx(1e-4), 2000, 1755, True)
    assert (len(calls) > 2000) == (pause_at is not None)


def test_a_host_slower_than_its_kernel_makes_groups_that_the_queue_holds(timer, device):
    calls = []

    def call():
        calls.append(device.host_s)
        device.launch(host_s=2e-5, device_s=1e-6)

    for _ in range(2):
        found = timer.time(call, 100_000)
        seen = (found.time_s, found.calls, found.held)
        assert seen == (pytest.approx(1e-6), device_timer.QUEUED, True)
    assert len(calls) < 10 * device_timer.QUEUED


def test_a_hold_that_a_risen_clock_shortened_is_made_anew_and_doubled(timer, device, monkeypatch):
    def call():
        device.launch(host_s=1e-3, device_s=1e-4)

    timer.time(call, 20)
    held_s = timer._hold_s[call, 20]
    device.cycles_per_s *= 2
    calibrated = []

    def calibrate():
        calibrated.append(timer._hold_s[call, 20])
        return spin_clocks_per_s()

    monkeypatch.setattr(device_timer, "spin_clocks_per_s", calibrate)
    assert timer.time(call, 20).held
    assert timer._spin_per_s == pytest.approx(device.cycles_per_s)
    assert calibrated == [held_s]


def test_a_group_follows_sustained_work_and_reads_the_clock_during_it(timer, device):
    """The clock falls under load: before and after the group it is another."""
    began_s, calls = device.host_s, []

    def call():
        calls.append(device.host_s)
        device.launch(host_s=1e-6, device_s=1e-3)

    timer.settle(call, 100, best_s=1e-3)
    assert device.free_at_s - began_s >= device_timer.SUSTAINED_S
    assert device.free_at_s > device.host_s, "the group follows without a gap"
    timer._clock_mhz = lambda: 1500 if device.host_s < device.free_at_s else 1980
    assert timer.time(call, 100).clock_mhz == 1500
    timer._clock_mhz = lambda: device.launch(1.0, 0.0) or 1980
    assert timer.time(call, 100).clock_mhz is None, "the work was over before the clock was read"


@pytest.mark.parametrize(
    ("clocks", "chunks"),
    [
        ([1980, 1980], 1),  # no limit acts
        ([1980, 1430, 1400, 1380, 1366, 1366], 5),  # the limit takes longer than the first chunk
        ([345, 1980], 1),  # a rested device rises
        ([None, None], 1),
        ([2000 - 20 * n for n in range(20)], device_timer.MOST_SUSTAINED),
    ],
)
def test_work_is_sustained_until_the_power_limit_lowers_the_clock(timer, device, clocks, chunks):
    began_s, read = device.host_s, iter(clocks)
    timer._clock_mhz = lambda: next(read)
    timer.settle(lambda: device.launch(host_s=1e-6, device_s=1e-3), 100, best_s=1e-3)
    assert device.host_s - began_s == pytest.approx(chunks * device_timer.SUSTAINED_S, rel=0.2)


def test_a_burst_follows_a_rest_and_is_watched_while_it_runs(timer, device, monkeypatch):
    """A rested device has its highest clock; after sustained work it has not."""
    slept, seen = [], []
    monkeypatch.setattr(
        device_timer.time,
        "sleep",
        lambda s: slept.append(s) or setattr(device, "host_s", device.host_s + s),
    )
    timer.during = lambda: seen.append(device.host_s < device.free_at_s)
    call = lambda: device.launch(host_s=1e-6, device_s=1e-3)  # noqa: E731
    busy_until_s = device.free_at_s
    found = timer.burst(call, 20, rest_s=2.0)
    assert (found.time_s, found.calls, found.held) == (pytest.approx(1e-3), 20, True)
    assert slept == [2.0] * len(seen)
    assert device.free_at_s - busy_until_s >= 2.0
    assert seen[-1], "the work was still running"


def test_a_clock_that_the_driver_refuses_costs_its_own_field_alone(device, monkeypatch):
    made_by = Gpu(refused={"nvmlDeviceGetClockInfo"})
    StandIn(made_by).install(monkeypatch)
    monkeypatch.setattr(gpu, "uuid_of", lambda asked: made_by.uuid)
    monkeypatch.setattr(
        device_timer, "clock_reader", lambda asked: gpu.clock_reader(SimpleNamespace(type="cuda"))
    )
    found = made().time(lambda: device.launch(host_s=1e-6, device_s=1e-4), 20)
    assert found == (pytest.approx(1e-4), 20, None, True)
    nvml.why_absent.cache_clear()


def test_a_call_longer_than_that_is_not_repeated_before_it_is_timed(timer):
    def call():
        raise AssertionError("called")

    timer.settle(call, 1, best_s=1.0)


def test_two_calls_have_holds_of_their_own(timer, device):
    def quick():
        device.launch(host_s=1e-6, device_s=1e-4)

    def slow():
        device.launch(host_s=5e-3, device_s=1e-4)

    timer.time(slow, 10)
    assert timer.time(quick, 10).time_s == pytest.approx(1e-4)
    assert timer.cold(quick).time_s == pytest.approx(1e-4)
