"""Numba CUDA, unrolled register tile: 32-bit indices into flat arrays, an unrolled inner loop, and
prefetch of the next tile."""

from typing import Any

import numpy as np
from numba import config, cuda, float32, uint32

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Shape
from mfulab.kernels.numba_cuda import NumbaCuda

TILE = uint32(128)
DEPTH = uint32(8)
RUN = uint32(8)
COLUMNS = uint32(16)  # TILE // RUN
THREADS = uint32(256)
LOADS = uint32(4)  # TILE · DEPTH / THREADS
DOWN_A = uint32(32)
DOWN_B = uint32(2)  # rows between a thread's loads: THREADS / DEPTH and THREADS / TILE
# distance between the two groups of four of a thread's rows and columns, so that neighbouring
# threads use different banks
HALF = uint32(64)
# length of a row of A's tile, which is stored transposed; padded so that stores use different banks
ROW = uint32(132)
BUFFER_A = uint32(1056)
BUFFER_B = uint32(1024)  # DEPTH · ROW, DEPTH · TILE
SHARED_A = 2112
SHARED_B = 2048  # two buffers for each operand
FOUR = uint32(4)
# An alignment that lets four loads become one of 128 bits, and a register limit for two blocks per
# SM. The simulator supports neither.
ALIGNMENT = None if config.ENABLE_CUDASIM else 16
LIMIT = {} if config.ENABLE_CUDASIM else {"max_registers": 128}


@cuda.jit(device=True, inline="always")
def _fetch_a(coming, a, matrix, row, k, rows, inner):
    """Loads a thread's elements of A's tile. Beyond `inner` they are zeros. Beyond the last row,
    they repeat that row, and their sums are not stored."""
    for i in range(LOADS):
        at = (matrix * rows + min(row + i * DOWN_A, rows - uint32(1))) * inner + k
        coming[i] = a[at] if k < inner else float32(0)


@cuda.jit(device=True, inline="always")
def _fetch_b(coming, b, matrix, k, column, inner, columns):
    """Loads a thread's elements of B's tile, like `_fetch_a`, but down the inner dimension."""
    at = (matrix * inner + k) * columns + min(column, columns - uint32(1))
    for i in range(LOADS):
        coming[i] = b[at + i * DOWN_B * columns] if k + i * DOWN_B < inner else float32(0)


@cuda.jit(device=True, inline="always")
def _keep(tile, at, step, coming):
    """Stores the fetched elements into shared memory, `step` elements apart."""
    for i in range(LOADS):
        tile[at + i * step] = coming[i]


@cuda.jit(device=True, inline="always")
def _multiply_once(tile_a, tile_b, at_a, at_b, total):
    """Adds a column of A's tile times a row of B's to `total`: 64 multiply-adds."""
    from_a = cuda.local.array(4, float32)
    from_b = cuda.local.array(8, float32)
    for i in range(FOUR):
        from_b[i] = tile_b[at_b + i]
        from_b[i + FOUR] = tile_b[at_b + HALF + i]
    for half in range(uint32(2)):
        for i in range(FOUR):
            from_a[i] = tile_a[at_a + half * HALF + i]
        for p in range(FOUR):
            for q in range(RUN):
                total[(half * FOUR + p) * RUN + q] += from_a[p] * from_b[q]


@cuda.jit(device=True, inline="always")
def _multiply_four(tile_a, tile_b, at_a, at_b, total):
    """Multiplies four steps of the inner dimension, unrolled by hand because LLVM does not unroll a
    loop of this size."""
    _multiply_once(tile_a, tile_b, at_a, at_b, total)
    _multiply_once(tile_a, tile_b, at_a + ROW, at_b + TILE, total)
    _multiply_once(tile_a, tile_b, at_a + uint32(2) * ROW, at_b + uint32(2) * TILE, total)
    _multiply_once(tile_a, tile_b, at_a + uint32(3) * ROW, at_b + uint32(3) * TILE, total)


@cuda.jit(device=True, inline="always")
def _write(c, batch, rows, columns, top, left, total):
    """Writes a thread's 8×8 of C, in four quads half a tile apart, masked at the edges."""
    for p in range(RUN):
        row = top + p % FOUR + p // FOUR * HALF
        for q in range(RUN):
            column = left + q % FOUR + q // FOUR * HALF
            if row < rows and column < columns:
                c[(batch * rows + row) * columns + column] = total[p * RUN + q]


@cuda.jit(**LIMIT)
def _matmul(a, b, c, rows, columns, inner):
    tile_a = cuda.shared.array(SHARED_A, float32, alignment=ALIGNMENT)
    tile_b = cuda.shared.array(SHARED_B, float32, alignment=ALIGNMENT)
    total = cuda.local.array(64, float32)
    coming_a = cuda.local.array(4, float32)
    coming_b = cuda.local.array(4, float32)
    thread = uint32(cuda.threadIdx.x)
    batch = uint32(cuda.blockIdx.z)
    top = uint32(cuda.blockIdx.y) * TILE
    left = uint32(cuda.blockIdx.x) * TILE
    x = thread % COLUMNS * FOUR
    y = thread // COLUMNS * FOUR
    for i in range(uint32(64)):
        total[i] = float32(0)

    # This thread loads A at (row_a, k_a) and every 32 rows further down, B at (k_b, column_b) and
    # every 2 rows further down.
    row_a = top + thread // DEPTH
    k_a = thread % DEPTH
    k_b = thread // TILE
    column_b = left + thread % TILE
    to_a = k_a * ROW + thread // DEPTH
    _fetch_a(coming_a, a, batch, row_a, k_a, rows, inner)
    _fetch_b(coming_b, b, batch, k_b, column_b, inner, columns)
    _keep(tile_a, to_a, DOWN_A, coming_a)
    _keep(tile_b, thread, THREADS, coming_b)
    cuda.syncthreads()
    here = uint32(0)
    for start in range(DEPTH, inner + DEPTH, DEPTH):
        _fetch_a(coming_a, a, batch, row_a, k_a + start, rows, inner)
        _fetch_b(coming_b, b, batch, k_b + start, column_b, inner, columns)
        from_row = here * BUFFER_A + y
        from_column = here * BUFFER_B + x
        _multiply_four(tile_a, tile_b, from_row, from_column, total)
        _multiply_four(tile_a, tile_b, from_row + FOUR * ROW, from_column + FOUR * TILE, total)
        here = uint32(1) - here
        # Safe, because the other buffer was last read before the previous barrier.
        _keep(tile_a, here * BUFFER_A + to_a, DOWN_A, coming_a)
        _keep(tile_b, here * BUFFER_B + thread, THREADS, coming_b)
        cuda.syncthreads()
    _write(c, batch, rows, columns, top + y, left + x, total)


class NumbaCudaUnrolled(NumbaCuda):
    """Does not support arrays of 2³² or more elements, because indices have 32 bits."""

    after = "numba_cuda_register"
    adds = "32-bit indices, unrolled inner loop, the next tile loads while this one is multiplied"
    function = _matmul
    side = int(TILE)
    threads = int(THREADS)

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.batch * max(shape.m * shape.k, shape.k * shape.n, shape.m * shape.n) >= 2**32:
            raise UnsupportedError(Said("index_too_small", kernel=str(self), shape=str(shape)))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        sides = tuple(np.uint32(side) for side in (a.shape[1], b.shape[2], a.shape[2]))
        return *super().prepare(a.view(-1), b.view(-1), c.view(-1)), *sides
