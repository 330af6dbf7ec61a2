"""Times calls on the CPU, where a call returns when it has finished."""

import time
from pathlib import Path

import numpy as np

from mfulab.measure.repetitions import Call

CACHE_BYTES = 32 << 20  # where the system does not tell
_SIZES = Path("/sys/devices/system/cpu/cpu0/cache")


class HostTimer:
    """`time.perf_counter`; the caches are flushed by writing twice the last-level cache."""

    resolution_s = 1e-4

    def __init__(self) -> None:
        self._scratch = np.zeros(2 * last_level_cache_bytes(), np.uint8)

    def time(self, call: Call, calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - started) / calls

    def cold(self, call: Call) -> float:
        self._scratch += 1
        return self.time(call, 1)

    def clock_mhz(self) -> None:
        return None  # a virtual machine shows its nominal clock, not the one it runs at


def last_level_cache_bytes() -> int:
    """Size of the largest cache of the first CPU."""
    sizes = [_bytes(path.read_text().strip()) for path in _SIZES.glob("index*/size")]
    return max(sizes, default=CACHE_BYTES)


def _bytes(size: str) -> int:
    return int(size.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(size[-1], 1)
