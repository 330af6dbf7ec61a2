"""Walks through a working set and times one access, which shows the caches as a program sees
them."""

import json
import statistics
from pathlib import Path

import psutil
import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.core.said import Said
from mfulab.device import is_gpu, require_cuda
from mfulab.device.compute import prepare
from mfulab.device.cpu import caches, cpu
from mfulab.measurements.probe_memory import MemoryRow, ProbeMemoryConfig
from mfulab.measurements.probe_memory.memory_access import (
    BY_HAND,
    FILES,
    Walk,
    device_walk,
    file_walk,
    hand_walk,
    host_walk,
)
from mfulab.timing.repetitions import HostTimer

REPETITIONS = 7
REPETITION_S = 0.05
MEMORY = "memory"


def measure(config: ProbeMemoryConfig, folder: Path) -> Measured:
    """Returns one row: the time of an access in one order over one working set."""
    device, _ = prepare(config.device)
    require_cuda(device, "probe_memory")
    size = config.working_set_bytes
    pattern = config.pattern
    on_gpu = is_gpu(device)
    # Making the cycle of a pointer chase takes temporary copies of the working set.
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else psutil.virtual_memory().available
    if 3 * size > free:
        raise UnsupportedError(Said("walk_needs_memory", size=str(size), free=str(free)))
    if pattern in ("host", *BY_HAND) and not on_gpu:
        raise UnsupportedError(Said("pattern_of_gpu", pattern=pattern))
    if pattern in BY_HAND:
        walk = hand_walk(pattern, size)
    elif pattern in FILES:
        walk = file_walk(pattern, size, folder, config.seed)
    elif on_gpu:
        walk = device_walk(pattern, size, config.seed)
    else:
        walk = host_walk(pattern, size, config.seed)
    levels = caches()
    if on_gpu:  # L1 shares its memory with shared memory
        properties = torch.cuda.get_device_properties(device)
        levels = {"L1": properties.shared_memory_per_multiprocessor, "L2": properties.L2_cache_size}
    times, clock = _times(walk, device, on_host=not on_gpu or pattern in BY_HAND)
    row = MemoryRow.of(
        config,
        working_set_bytes=size,
        level=pattern if pattern in ("host", *BY_HAND, *FILES) else level_of(size, levels),
        caches=json.dumps(levels),
        accesses=walk.accesses,
        clock_mhz=clock,
        repetitions=len(times),
        measured_s=sum(times),
        **rates(walk, times, clock),
    )
    samples = [{"window": 0, "sample": index, "time_s": time} for index, time in enumerate(times)]
    return Measured(row, samples)


def rates(walk: Walk, times: list[float], clock_mhz: float | None) -> dict[str, float | None]:
    """Columns of time, cycles and bandwidth of an access. `times` are the seconds of each call of
    the walk."""
    time = statistics.median(times) / walk.accesses
    return {
        "time_per_access_s": time,
        "cycles_per_access": time * clock_mhz * 1e6 if clock_mhz else None,
        "gb_s": 8 / time / 1e9,
        "touched_gb_s": walk.touched_bytes / walk.accesses / time / 1e9,
    }


def level_of(size: int, levels: dict[str, int]) -> str:
    """Name of the smallest cache that holds `size` bytes, or `memory` if none does."""
    fitting = {name: capacity for name, capacity in levels.items() if size <= capacity}
    return min(fitting, key=fitting.__getitem__, default=MEMORY)


def _times(walk: Walk, device: torch.device, on_host: bool) -> tuple[list[float], float | None]:
    """Returns the seconds per call of the walk in each repetition, and the mean clock in MHz of the
    device that walks. The clock is None if it is unknown."""
    if on_host:
        host = HostTimer(1)
        calls = max(1, round(REPETITION_S / host.time(walk.call, 1).time_s))
        times = [host.time(walk.call, calls).time_s for _ in range(REPETITIONS)]
        return times, None if is_gpu(device) else cpu().clock_mhz
    from mfulab.timing.device_timer import DeviceTimer

    timer = DeviceTimer(device)
    repetitions = [timer.time(walk.call, 3) for _ in range(REPETITIONS)]
    times = [timed.time_s for timed in repetitions]
    clocks = [timed.clock_mhz for timed in repetitions if timed.clock_mhz is not None]
    return times, statistics.fmean(clocks) if clocks else None
