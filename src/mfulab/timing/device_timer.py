"""Times launches on a GPU with events. The stream is held back while the host queues the launches,
so that none of them waits for the host."""

import time
from collections.abc import Callable

import torch

from mfulab.device import vendors
from mfulab.device.gpu import clock_reader
from mfulab.timing.repetitions import Call, HostTimer, Timed

LONGEST_HOLD_S = 0.2
# back-to-back work before a group, so that the power limit acts as it does on a model's steps
SUSTAINED_S = 0.3
MOST_SUSTAINED = 8  # repeats that at most this often, while the clock still falls by more than …
FALLS = 0.004  # … this share
MOST_VOIDS = 3
# calls in the launch queue, which holds about 1000. If it is full, the host waits for the stream.
QUEUED = 500
BETWEEN_MARKS = QUEUED // 2
SPIN_CLOCKS = 1_000_000  # 0.5 ms of SM clocks, 10 ms of a 100 MHz counter


def spin_clocks_per_s() -> float:
    """Clock rate of torch's spinning kernel in Hz. It counts SM clocks on NVIDIA GPUs, and a 100
    MHz counter on AMD's RDNA3."""
    torch.cuda._sleep(SPIN_CLOCKS)
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    torch.cuda._sleep(SPIN_CLOCKS)
    end.record()
    end.synchronize()
    return SPIN_CLOCKS / (start.elapsed_time(end) / 1e3)


class DeviceTimer(HostTimer):
    """Times a group of calls with CUDA events. A spinning kernel holds the stream slightly longer
    than the host needs to queue the launches. In a longer group only the first `QUEUED` calls are
    held; marks between later calls show whether the device caught up. A group is void if its hold
    ended too early or the device caught up. It is repeated with a longer, recalibrated hold. After
    three void groups, a group has at most `QUEUED` calls. After three more it is timed anyway, with
    `held` False."""

    most_calls = 100_000  # fills a group with a kernel of 1 µs

    def __init__(
        self, device: torch.device, group_s: float = 0.1, sustained_s: float = SUSTAINED_S
    ) -> None:
        """Creates a timer whose groups take at least `group_s`. `settle` works for `sustained_s`
        before each group."""
        self.resolution_s = group_s
        self._sustained_s = sustained_s
        cache_bytes = vendors.of_device(device).last_cache_bytes(device)
        self._scratch = torch.zeros(
            2 * max(cache_bytes, 32 << 20), dtype=torch.uint8, device=device
        )
        self._clock_mhz = clock_reader(device)
        self._spin_per_s = spin_clocks_per_s()
        self.during: Callable[[], object] = lambda: None  # called once per group, while it runs
        self._hold_s: dict[tuple[Call, int], float] = {}
        self._voids: dict[tuple[Call, int], int] = {}

    def time(self, call: Call, calls: int) -> Timed:
        return self._timed(call, calls, lambda: None)

    def burst(self, call: Call, calls: int, rest_s: float) -> Timed:
        """Times calls after `rest_s` of idle time, when the power limit does not yet act."""
        return self._timed(call, calls, lambda: time.sleep(rest_s))

    def cold(self, call: Call) -> Timed:
        return self._timed(call, 1, self._scratch.zero_)

    def settle(self, call: Call, calls: int, best_s: float) -> None:
        """Repeats the call until the device's clock stops falling. Leaves some calls queued."""
        if best_s > self._sustained_s:
            return
        clock = self._clock_mhz()
        before = None
        for _ in range(MOST_SUSTAINED):
            before = self._sustain(call, calls, before)
            earlier = clock
            clock = self._clock_mhz()
            if not earlier or not clock or clock >= earlier * (1 - FALLS):
                return

    def _sustain(
        self, call: Call, calls: int, before: torch.cuda.Event | None
    ) -> torch.cuda.Event | None:
        deadline = time.perf_counter() + self._sustained_s
        while time.perf_counter() < deadline:
            for _ in range(max(1, min(calls, QUEUED) // 4)):
                call()
            queued = torch.cuda.Event()
            queued.record()
            if before is not None:
                before.synchronize()
            before = queued
        return before

    def _timed(self, call: Call, calls: int, before: Callable[[], object]) -> Timed:
        key = (call, calls)
        while self._voids.get(key, 0) < MOST_VOIDS:
            before()
            timed = self._group(call, calls)
            if timed.held:
                self._voids[key] = 0
                return timed
            self._voids[key] = self._voids.get(key, 0) + 1
        if calls > QUEUED:
            return self._timed(call, QUEUED, before)
        before()
        return self._group(call, calls)

    def _group(self, call: Call, calls: int) -> Timed:
        key = (call, calls)
        hold_s = self._hold_s.get(key, 1e-3)
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(hold_s * self._spin_per_s))
        queueing = time.perf_counter()
        start.record()
        made = min(calls, QUEUED)
        for _ in range(made):
            call()
        queued_s = time.perf_counter() - queueing
        was_held = ahead = not start.query()
        while ahead and made < calls:
            mark = torch.cuda.Event()
            more = min(BETWEEN_MARKS, calls - made)
            mark.record()
            for _ in range(more):
                call()
            made += more
            ahead = not mark.query()
        end.record()
        start.synchronize()
        clock_mhz = self._clock_mhz()
        during = not end.query()
        self.during()
        end.synchronize()
        if not was_held:
            queued_s = max(queued_s, 2 / 1.5 * hold_s)
            self._spin_per_s = spin_clocks_per_s()
        self._hold_s[key] = min(max(1.5 * queued_s, 2e-4), LONGEST_HOLD_S)
        return Timed(
            start.elapsed_time(end) / 1e3 / made, made, clock_mhz if during else None, ahead
        )
