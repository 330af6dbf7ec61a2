"""State of the C allocator, which decides whether a step's tensors get new pages each time. glibc
(malloc/malloc.c, mallopt(3)) maps a block above its mmap threshold anew, and unmaps it when freed.
The threshold starts at 128 KiB and grows to the largest mapped block freed so far, up to 32 MiB.
Free memory at the heap's top beyond twice the threshold is returned to the system."""

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
ALIGNMENT = MIB >> 4  # upper bound on what torch's alignment and malloc's header add to a block
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4  # malloc.h
MMAP_MAX = 65536  # glibc's default
TIMED_BYTES = 16 * MIB
TIMED = 5


def settle() -> None:
    """Raises glibc's dynamic thresholds to their maximum, where training would bring them anyway.
    Frees one large block whose pages are never touched."""
    torch.empty(DYNAMIC_MAXIMUM - ALIGNMENT, dtype=torch.uint8, device="cpu")


@contextlib.contextmanager
def kept_memory() -> Iterator[bool]:
    """Keeps freed memory in the heap and allocates no block by mmap inside the `with` block. Yields
    False if mallopt is missing or refuses. Then restores the settings of `settle`."""
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
        # otherwise the free heap would still serve blocks that should be mapped
        if malloc_trim is not None:
            malloc_trim(0)


def mapped(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """CPU tensor of ones in its own mmap, so that malloc and its thresholds do not see it."""
    held = mmap.mmap(
        -1, math.prod(shape, start=dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    return torch.frombuffer(held, dtype=dtype).view(shape).fill_(1)


def page_faults() -> int:
    """Minor page faults (no disk access) of all threads of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_fault_s() -> float | None:
    """Current cost of one page fault in seconds, including clearing and returning the page.
    Computed from the minimum of `TIMED` trials; None if it cannot be measured."""
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
