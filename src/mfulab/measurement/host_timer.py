"""Times calls on the CPU, where a call returns when it has finished."""

import time

import numpy as np

from mfulab.measurement.repetitions import Call


class HostTimer:
    """`time.perf_counter`; the caches are flushed by writing twice the last-level cache's bytes."""

    resolution_s = 1e-4
    most_calls = 1000

    def __init__(self, last_level_cache_bytes: int | None) -> None:
        self._scratch = np.zeros(2 * (last_level_cache_bytes or 32 << 20), np.uint8)

    def time(self, call: Call, calls: int) -> float:
        if calls > 1:
            call()  # wakes this library's threads: another one's may have run last
        started = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - started) / calls

    def cold(self, call: Call) -> float:
        self._scratch += 1
        return self.time(call, 1)

    def clock_mhz(self) -> None:
        return None  # a virtual machine shows its nominal clock, not the one it runs at
