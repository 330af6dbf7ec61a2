"""State of the C library's allocator, which decides whether a step's tensors lie in new pages each
time. glibc (malloc/malloc.c, mallopt(3)) maps a block above its threshold anew and unmaps it when
it is freed. The threshold begins at 128 KiB and becomes the size of the largest mapped block freed,
up to 32 MiB; twice that, free, is given back."""

import contextlib
import ctypes
import math
import mmap
import resource
import time
from collections.abc import Iterator

import torch

MIB = 1 << 20
DYNAMIC_MAXIMUM = 32 * MIB  # DEFAULT_MMAP_THRESHOLD_MAX of 64-bit glibc
ALIGNMENT = MIB >> 4  # more than torch's alignment and malloc's header add to a block
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4  # malloc.h
MMAP_MAX = 65536  # glibc's default
TIMED_BYTES = 16 * MIB
TIMED = 5


def settle() -> None:
    """Brings thresholds to their dynamic maximum, where training brings them, by a block whose
    pages stay untouched."""
    torch.empty(DYNAMIC_MAXIMUM - ALIGNMENT, dtype=torch.uint8, device="cpu")


@contextlib.contextmanager
def kept_memory() -> Iterator[bool]:
    """Serves every block from the heap and gives none back; afterwards as declared. Yields False
    without mallopt."""
    library = ctypes.CDLL(None)
    mallopt, malloc_trim = (getattr(library, name, None) for name in ("mallopt", "malloc_trim"))
    if mallopt is None:
        yield False
        return
    try:
        yield bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
    finally:
        mallopt(M_MMAP_MAX, MMAP_MAX)
        mallopt(M_MMAP_THRESHOLD, DYNAMIC_MAXIMUM)
        mallopt(M_TRIM_THRESHOLD, 2 * DYNAMIC_MAXIMUM)
        # else a heap below the threshold stays, and serves blocks that would be mapped
        if malloc_trim is not None:
            malloc_trim(0)


def mapped(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU in a mapping of its own, of ones: malloc, and its thresholds, see nothing
    of it."""
    held = mmap.mmap(
        -1, math.prod(shape, start=dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    return torch.frombuffer(held, dtype=dtype).view(shape).fill_(1)


def page_faults() -> int:
    """Faults of this process so far that needed no disk, of all its threads."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_fault_s() -> float | None:
    """Seconds of one page fault now: arrival, clearing and return, the least of `TIMED`; None if it
    cannot be told."""
    times = []
    for _ in range(TIMED):
        began = time.perf_counter()
        before = page_faults()
        block = mapped(TIMED_BYTES, dtype=torch.uint8)
        filled = time.perf_counter()
        faults = page_faults() - before
        block.fill_(2)
        again = time.perf_counter()
        del block
        times.append((filled - began, again - filled, time.perf_counter() - again, faults))
    arrival, touched, returned, faults = map(min, zip(*times, strict=True))
    cost = arrival - touched + returned
    return cost / faults if faults and cost > 0 else None
