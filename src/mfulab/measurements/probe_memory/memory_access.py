"""Walks through memory in a known order, on a CPU and on a GPU: what one access costs, by where its
data lie."""

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
CHASED = (
    1 << 16,
    1 << 20,
)  # least and most steps of a pointer chase in one call; the next call goes on from there
WALKED = 1 << 18  # least elements of any other walk in one call
BY_HAND = (
    "cuda_malloc",
    "cuda_memcpy",
)  # calls of CUDA's own interface, which return when they are done
FILES = {"page_cache": 4096, "disk": 32}  # walks through a file, by reads in one call


@dataclass(frozen=True)
class Walk:
    """A walk, made once already (all compiled, pages touched), its accesses of 8 bytes, and its
    lines' bytes."""

    call: Callable[[], Any]
    accesses: int
    touched_bytes: int

    def __post_init__(self) -> None:
        self.call()


@numba.njit
def chase(following, place, steps):
    """Moves place[0] by `steps` steps, each of which needs the one before: nothing can be fetched
    ahead."""
    at = place[0]
    for _ in range(steps):
        at = following[at]
    place[0] = at


@numba.njit
def in_order(values, stride, rounds):
    """Sum of every `stride`-th element, `rounds` times; the processor sees the next address
    coming."""
    total = 0
    for _ in range(rounds):
        for place in range(0, len(values), stride):
            total += values[place]
    return total


@numba.njit
def by_rows(matrix, rounds):
    """Sum of a matrix along its rows; of a transposed view down the columns, each element in
    another line."""
    total = 0
    for _ in range(rounds):
        for row in range(matrix.shape[0]):
            for column in range(matrix.shape[1]):
                total += matrix[row, column]
    return total


def cycle(places: int, spacing: int, seed: int) -> np.ndarray:
    """The next place of each in one random cycle (Sattolo, 1986): [places · spacing] int64, 0
    between the places."""
    order = np.random.default_rng(seed).permutation(places) * spacing
    following = np.zeros(places * spacing, np.int64)
    following[order] = np.roll(order, -1)
    return following


def host_walk(pattern: str, working_set_bytes: int, seed: int = 0) -> Walk:
    """A walk over a working set of the host."""
    elements = working_set_bytes // 8
    if pattern == "random":
        following = cycle(elements // LINE, LINE, seed)
        place = np.zeros(1, np.int64)
        steps = _steps(elements)
        return Walk(lambda: chase(following, place, steps), steps, steps * LINE * 8)
    values = np.arange(elements, dtype=np.int64)
    rounds = math.ceil(WALKED / elements)
    if pattern == "strided":
        return Walk(
            lambda: in_order(values, LINE, rounds),
            rounds * (elements // LINE),
            rounds * elements * 8,
        )
    if pattern not in ("sequential", "rows", "columns"):
        raise UnsupportedError(Said("walk_of_gpu", {"pattern": pattern}))
    side = math.isqrt(elements)
    # In order is a matrix of one row: the compiler vectorises both.
    matrix = values[None] if pattern == "sequential" else values[: side * side].reshape(side, side)
    matrix = matrix.T if pattern == "columns" else matrix
    return Walk(lambda: by_rows(matrix, rounds), rounds * matrix.size, rounds * matrix.size * 8)


def file_walk(pattern: str, working_set_bytes: int, folder: Path, seed: int = 0) -> Walk:
    """Reads of 8 bytes at random pages of a file in `folder`, cached or past it; UnsupportedError
    where there is none."""
    page = mmap.PAGESIZE
    places = (
        np.random.default_rng(seed).permutation(working_set_bytes // page)[: FILES[pattern]] * page
    ).tolist()
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
        target = mmap.mmap(-1, page)  # as aligned as a device wants it

        def read() -> None:
            for place in places:
                os.preadv(descriptor, [target], place) if direct else os.pread(descriptor, 8, place)

        return Walk(read, len(places), len(places) * page)
    except OSError as error:
        raise UnsupportedError(
            Said(
                "no_file_to_read", {"pattern": pattern, "folder": str(folder), "error": str(error)}
            )
        ) from error


def device_walk(pattern: str, working_set_bytes: int, seed: int = 0) -> Walk:
    """A walk on a GPU: one thread that chases, or all that sum; `host` is a copy from pinned
    memory."""
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
        # A transposed view is read down the columns; a sum of every 8th element touches each line
        # of 64 bytes once.
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
    places = device_array(following)
    place = device_array(torch.zeros(1, dtype=torch.int64, device=GPU))
    steps = _steps(elements)
    return Walk(
        lambda: chase_kernel[1, 1, current_stream()](places, place, steps), steps, steps * LINE * 8
    )


def hand_walk(pattern: str, working_set_bytes: int) -> Walk:
    """A GPU's memory taken by cudaMalloc and given back by cudaFree; `cuda_memcpy` fills it from
    pageable memory and copies it back between them. UnsupportedError with the runtime's words where
    a call fails."""
    from cuda.bindings import runtime

    here = np.ones(working_set_bytes, np.uint8)
    kinds = runtime.cudaMemcpyKind
    success = runtime.cudaError_t.cudaSuccess

    def checked(answer: tuple[Any, ...]) -> Any:
        code, *result = answer
        if code != success:
            raise UnsupportedError(
                Said(
                    "cuda_refused",
                    {
                        "pattern": pattern,
                        "error": str(runtime.cudaGetErrorString(code)[1].decode()),
                        "name": code.name,
                    },
                )
            )
        return result[0] if result else None

    def call() -> None:
        there = checked(runtime.cudaMalloc(here.nbytes))
        try:
            if pattern == "cuda_memcpy":
                checked(
                    runtime.cudaMemcpy(
                        there, here.ctypes.data, here.nbytes, kinds.cudaMemcpyHostToDevice
                    )
                )
                checked(
                    runtime.cudaMemcpy(
                        here.ctypes.data, there, here.nbytes, kinds.cudaMemcpyDeviceToHost
                    )
                )
        finally:
            checked(runtime.cudaFree(there))

    return Walk(call, working_set_bytes // 8, working_set_bytes)


def _steps(elements: int) -> int:
    """Steps of one call: a whole cycle, if that is neither too short for a clock nor too long to
    wait for."""
    return min(max(CHASED[0], elements // LINE), CHASED[1])
