"""Walks through memory in a known order, on a CPU and on a GPU. They show the cost of an access by
where its data lie."""

import math
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.device import GPU

LINE = 8  # elements of 8 bytes in a line of 64
# fewest and most steps of a pointer chase in one call; the next call continues from there
CHASE_STEPS = (1 << 16, 1 << 20)
WALK_ELEMENTS = 1 << 18  # fewest elements of any other walk in one call
# patterns that call CUDA's runtime directly; its calls return when they are done
BY_HAND = ("cuda_malloc", "cuda_memcpy")
FILES = {"page_cache": 4096, "disk": 32}  # walk through a file → reads per call


@dataclass(frozen=True)
class Walk:
    """A walk through memory: its call, the number of 8-byte accesses in it, and the bytes of the
    cache lines that it touches. Making a Walk calls it once, which compiles it and touches its
    pages."""

    call: Callable[[], Any]
    accesses: int
    touched_bytes: int

    def __post_init__(self) -> None:
        self.call()


@numba.njit
def chase(following, position, steps):
    """Follows `steps` links of a pointer chase from position[0], and stores the end there. Each step
    needs the one before, so nothing can be prefetched."""
    index = position[0]
    for _ in range(steps):
        index = following[index]
    position[0] = index


@numba.njit
def in_order(values, stride, rounds):
    """Sums every `stride`-th element, `rounds` times. The addresses are predictable, so the
    processor can prefetch."""
    total = 0
    for _ in range(rounds):
        for index in range(0, len(values), stride):
            total += values[index]
    return total


@numba.njit
def by_rows(matrix, rounds):
    """Sums a matrix row by row, `rounds` times. A transposed view is read down the columns, each
    element in another cache line."""
    total = 0
    for _ in range(rounds):
        for row in range(matrix.shape[0]):
            for column in range(matrix.shape[1]):
                total += matrix[row, column]
    return total


def cycle(count: int, spacing: int, seed: int) -> np.ndarray:
    """Returns int64 [count · spacing], where each multiple of `spacing` holds the next index of
    one random cycle through all of them (Sattolo, 1986). All other elements are 0."""
    order = np.random.default_rng(seed).permutation(count) * spacing
    following = np.zeros(count * spacing, np.int64)
    following[order] = np.roll(order, -1)
    return following


def host_walk(pattern: str, working_set_bytes: int, seed: int = 0) -> Walk:
    """Makes a walk over a working set in host memory. Raises UnsupportedError if the pattern is for
    GPUs only."""
    elements = working_set_bytes // 8
    if pattern == "random":
        following = cycle(elements // LINE, LINE, seed)
        position = np.zeros(1, np.int64)
        steps = _steps(elements)
        return Walk(lambda: chase(following, position, steps), steps, steps * LINE * 8)
    values = np.arange(elements, dtype=np.int64)
    rounds = math.ceil(WALK_ELEMENTS / elements)
    if pattern == "strided":
        accesses = rounds * (elements // LINE)
        return Walk(lambda: in_order(values, LINE, rounds), accesses, rounds * elements * 8)
    if pattern not in ("sequential", "rows", "columns"):
        raise UnsupportedError(Said("walk_of_gpu", pattern=pattern))
    side = math.isqrt(elements)
    # `sequential` is a matrix of one row, so that the compiler vectorises it just like `rows`.
    matrix = values[None] if pattern == "sequential" else values[: side * side].reshape(side, side)
    matrix = matrix.T if pattern == "columns" else matrix
    return Walk(lambda: by_rows(matrix, rounds), rounds * matrix.size, rounds * matrix.size * 8)


def file_walk(pattern: str, working_set_bytes: int, folder: Path, seed: int = 0) -> Walk:
    """Makes a walk that reads random pages of a temporary file in `folder`: 8 bytes each from the
    page cache, or whole pages past it for `disk`. Raises UnsupportedError if the file system does
    not allow it."""
    page = mmap.PAGESIZE
    pages = np.random.default_rng(seed).permutation(working_set_bytes // page)
    offsets = (pages[: FILES[pattern]] * page).tolist()
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            for _ in range(max(1, working_set_bytes >> 20)):
                file.write(os.urandom(min(working_set_bytes, 1 << 20)))
            file.flush()
            os.fsync(file.fileno())
            direct = getattr(os, "O_DIRECT", None) if pattern == "disk" else 0
            if direct is None:
                raise UnsupportedError(Said("no_uncached_reads"))
            descriptor = os.open(file.name, os.O_RDONLY | direct)
        target = mmap.mmap(-1, page)  # page-aligned, as O_DIRECT requires

        def read() -> None:
            for offset in offsets:
                if direct:
                    os.preadv(descriptor, [target], offset)
                else:
                    os.pread(descriptor, 8, offset)

        return Walk(read, len(offsets), len(offsets) * page)
    except OSError as error:
        raise UnsupportedError(
            Said("no_file_to_read", pattern=pattern, folder=str(folder), error=str(error))
        ) from error


def device_walk(pattern: str, working_set_bytes: int, seed: int = 0) -> Walk:
    """Makes a walk on a GPU: a pointer chase by one thread, or a sum by all threads. `host` copies
    from pinned memory instead."""
    import torch

    elements = working_set_bytes // 8
    if pattern == "host":
        pinned = torch.ones(elements, dtype=torch.int64).pin_memory()
        target = torch.empty_like(pinned, device=GPU)
        return Walk(lambda: target.copy_(pinned, non_blocking=True), elements, elements * 8)
    if pattern != "random":
        values = torch.arange(elements, device=GPU)
        side = math.isqrt(elements)
        matrix = values[: side * side].view(side, side)
        # A transposed view is read down the columns. A sum of every 8th element touches each
        # 64-byte line once.
        views = {
            "sequential": values,
            "strided": values[::LINE],
            "rows": matrix,
            "columns": matrix.t(),
        }
        view = views[pattern]
        touched_bytes = 8 * (elements if pattern == "strided" else view.numel())
        return Walk(lambda: view.sum(-1), view.numel(), touched_bytes)
    from numba import cuda

    from mfulab.kernels.numba_cuda import current_stream, device_array

    chase_kernel = cuda.jit(chase.py_func)  # by one thread
    following = torch.from_numpy(cycle(elements // LINE, LINE, seed)).cuda()
    links = device_array(following)
    position = device_array(torch.zeros(1, dtype=torch.int64, device=GPU))
    steps = _steps(elements)

    def call() -> None:
        chase_kernel[1, 1, current_stream()](links, position, steps)

    return Walk(call, steps, steps * LINE * 8)


def hand_walk(pattern: str, working_set_bytes: int) -> Walk:
    """Makes a walk that allocates GPU memory with cudaMalloc and frees it with cudaFree.
    `cuda_memcpy` also copies to it from pageable memory and back. Raises UnsupportedError with
    CUDA's message if a call fails."""
    from cuda.bindings import runtime

    host = np.ones(working_set_bytes, np.uint8)
    kinds = runtime.cudaMemcpyKind
    success = runtime.cudaError_t.cudaSuccess

    def checked(answer: tuple[Any, ...]) -> Any:
        code, *result = answer
        if code != success:
            message = runtime.cudaGetErrorString(code)[1].decode()
            raise UnsupportedError(
                Said("cuda_refused", pattern=pattern, error=str(message), name=code.name)
            )
        return result[0] if result else None

    def call() -> None:
        size = host.nbytes
        device = checked(runtime.cudaMalloc(size))
        try:
            if pattern == "cuda_memcpy":
                address = host.ctypes.data
                checked(runtime.cudaMemcpy(device, address, size, kinds.cudaMemcpyHostToDevice))
                checked(runtime.cudaMemcpy(address, device, size, kinds.cudaMemcpyDeviceToHost))
        finally:
            checked(runtime.cudaFree(device))

    return Walk(call, working_set_bytes // 8, working_set_bytes)


def _steps(elements: int) -> int:
    """Steps of a pointer chase in one call: one cycle, within the limits of CHASE_STEPS."""
    fewest, most = CHASE_STEPS
    return min(max(fewest, elements // LINE), most)
