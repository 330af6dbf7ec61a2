"""Times launches on a GPU by events, with the stream held back while the host queues: no launch waits for the host."""

import time

import torch

from mfulab.timing.repetitions import Call, Timed

LONGEST_HOLD_S = 0.2
SUSTAINED_S = 0.3  # of back-to-back work before a group: the power limit acts as it does on a model's steps
MOST_VOIDS = 3


class DeviceTimer:
    """CUDA events on the current stream.

    The hold is a spinning kernel a little longer than the host took to queue the same launches the last time. A
    repetition whose hold ended before all was queued is void: the next hold is twice as long and the spinning kernel
    is calibrated anew, since the clock may have risen. A call that synchronises cannot be held back: after three void
    repetitions it is timed as it is, and the repetition is not `held`.
    """

    resolution_s = 0.1
    most_calls = 500  # the launch queue holds about 1000; a full one would make the host wait for the held stream

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._scratch = torch.zeros(2 * max(properties.L2_cache_size, 32 << 20), dtype=torch.uint8, device="cuda")
        self._spin_per_s = self._calibrate()
        self._hold_s: dict[tuple[Call, int], float] = {}
        self._voids: dict[tuple[Call, int], int] = {}

    @staticmethod
    def _calibrate(cycles: int = 10_000_000) -> float:
        """Cycles of the spinning kernel that take a second."""
        torch.cuda._sleep(cycles)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return cycles / (start.elapsed_time(end) / 1e3)

    def time(self, call: Call, calls: int) -> Timed | None:
        return self._timed(call, calls)

    def cold(self, call: Call) -> Timed | None:
        self._scratch.zero_()
        return self._timed(call, 1)

    def settle(self, call: Call, calls: int, best_s: float) -> None:
        """Keeps the device at this call alone for SUSTAINED_S, and leaves a little of it queued."""
        if best_s > SUSTAINED_S:
            return
        deadline = time.perf_counter() + SUSTAINED_S
        before = None
        while time.perf_counter() < deadline:
            for _ in range(max(1, calls // 4)):
                call()
            queued = torch.cuda.Event()
            queued.record()
            if before is not None:
                before.synchronize()
            before = queued

    def _timed(self, call: Call, calls: int) -> Timed | None:
        key = (call, calls)
        hold_s = self._hold_s.get(key, 1e-3)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(hold_s * self._spin_per_s))
        queueing = time.perf_counter()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        queued_s = time.perf_counter() - queueing
        held = not start.query()
        start.synchronize()
        clock_mhz = self._clock_mhz()
        during = not end.query()
        end.synchronize()
        if not held:
            queued_s = max(queued_s, 2 / 1.5 * hold_s)
            self._spin_per_s = self._calibrate()
            self._voids[key] = self._voids.get(key, 0) + 1
        self._hold_s[key] = min(max(1.5 * queued_s, 2e-4), LONGEST_HOLD_S)
        if not held and self._voids[key] <= MOST_VOIDS:
            return None
        return Timed(start.elapsed_time(end) / 1e3 / calls, clock_mhz if during else None, held)

    @staticmethod
    def _clock_mhz() -> float | None:
        try:
            return float(torch.cuda.clock_rate())
        except (RuntimeError, ModuleNotFoundError, OSError):
            return None
