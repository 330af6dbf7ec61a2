"""Numba CUDA, unrolled register tile: 32-bit indices into flat arrays, inner loop unrolled, next tile on its way."""

from typing import Any

import numpy as np
from numba import config, cuda, float32, uint32

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Shape
from mfulab.kernels.numba_cuda import NumbaCuda, device_array

TILE, DEPTH, RUN = uint32(128), uint32(8), uint32(8)
COLUMNS = uint32(16)  # TILE // RUN
THREADS = uint32(256)
LOADS = uint32(4)  # TILE · DEPTH / THREADS
HALF = uint32(64)  # a thread's rows and columns lie in two fours, half a tile apart: its neighbours use other banks
ROW = uint32(132)  # of A's tile, which is stored transposed; the padding keeps those stores in different banks
BUFFER_A, BUFFER_B = uint32(1056), uint32(1024)  # DEPTH · ROW, DEPTH · TILE
SHARED_A, SHARED_B = 2112, 2048  # two buffers each
FOUR = uint32(4)
# The simulator knows neither: an alignment that lets four loads become one of 128 bits, and two blocks on an SM.
ALIGNMENT = None if config.ENABLE_CUDASIM else 16
LIMIT = {} if config.ENABLE_CUDASIM else {"max_registers": 128}


@cuda.jit(device=True, inline="always")
def _multiply_once(tile_a, tile_b, at_a, at_b, from_a, from_b, total):
    """total += a column of A's tile times a row of B's: 64 multiply-adds."""
    for i in range(FOUR):
        from_a[i] = tile_a[at_a + i]
        from_a[i + FOUR] = tile_a[at_a + HALF + i]
        from_b[i] = tile_b[at_b + i]
        from_b[i + FOUR] = tile_b[at_b + HALF + i]
    for p in range(RUN):
        for q in range(RUN):
            total[p * RUN + q] += from_a[p] * from_b[q]


@cuda.jit(device=True, inline="always")
def _multiply_four(tile_a, tile_b, at_a, at_b, from_a, from_b, total):
    """Four of the inner dimension, unrolled by hand: LLVM leaves a loop of this size rolled."""
    _multiply_once(tile_a, tile_b, at_a, at_b, from_a, from_b, total)
    _multiply_once(tile_a, tile_b, at_a + ROW, at_b + TILE, from_a, from_b, total)
    _multiply_once(tile_a, tile_b, at_a + uint32(2) * ROW, at_b + uint32(2) * TILE, from_a, from_b, total)
    _multiply_once(tile_a, tile_b, at_a + uint32(3) * ROW, at_b + uint32(3) * TILE, from_a, from_b, total)


@cuda.jit(**LIMIT)
def _matmul(a, b, c, rows, columns, inner):
    tile_a = cuda.shared.array(SHARED_A, float32, alignment=ALIGNMENT)
    tile_b = cuda.shared.array(SHARED_B, float32, alignment=ALIGNMENT)
    total = cuda.local.array(64, float32)
    from_a = cuda.local.array(8, float32)
    from_b = cuda.local.array(8, float32)
    coming_a = cuda.local.array(4, float32)
    coming_b = cuda.local.array(4, float32)
    thread = uint32(cuda.threadIdx.x)
    batch = uint32(cuda.blockIdx.z)
    top, left = uint32(cuda.blockIdx.y) * TILE, uint32(cuda.blockIdx.x) * TILE
    x, y = thread % COLUMNS * FOUR, thread // COLUMNS * FOUR
    for i in range(uint32(64)):
        total[i] = float32(0)

    # This thread loads A at (row_a, k_a) and each 32 rows further down, B at (k_b, column_b) and each 2 rows below.
    row_a, k_a = top + thread // DEPTH, thread % DEPTH
    k_b, column_b = thread // TILE, left + thread % TILE
    at_a, at_b = (batch * rows + row_a) * inner + k_a, (batch * inner + k_b) * columns + column_b
    to_a = k_a * ROW + thread // DEPTH
    for i in range(LOADS):
        inside_a = row_a + i * uint32(32) < rows and k_a < inner
        inside_b = k_b + i * uint32(2) < inner and column_b < columns
        tile_a[to_a + i * uint32(32)] = a[at_a + i * uint32(32) * inner] if inside_a else float32(0)
        tile_b[thread + i * THREADS] = b[at_b + i * uint32(2) * columns] if inside_b else float32(0)
    cuda.syncthreads()
    here = uint32(0)
    while k_a - thread % DEPTH < inner:
        k_a += DEPTH
        k_b += DEPTH
        at_a += DEPTH
        at_b += DEPTH * columns
        for i in range(LOADS):
            inside_a = row_a + i * uint32(32) < rows and k_a < inner
            inside_b = k_b + i * uint32(2) < inner and column_b < columns
            coming_a[i] = a[at_a + i * uint32(32) * inner] if inside_a else float32(0)
            coming_b[i] = b[at_b + i * uint32(2) * columns] if inside_b else float32(0)
        from_row, from_column = here * BUFFER_A + y, here * BUFFER_B + x
        _multiply_four(tile_a, tile_b, from_row, from_column, from_a, from_b, total)
        _multiply_four(tile_a, tile_b, from_row + FOUR * ROW, from_column + FOUR * TILE, from_a, from_b, total)
        here = uint32(1) - here
        # The other buffer was last read before the previous barrier.
        for i in range(LOADS):
            tile_a[here * BUFFER_A + to_a + i * uint32(32)] = coming_a[i]
            tile_b[here * BUFFER_B + thread + i * THREADS] = coming_b[i]
        cuda.syncthreads()

    for p in range(RUN):
        row = top + y + p % FOUR + p // FOUR * HALF
        for q in range(RUN):
            column = left + x + q % FOUR + q // FOUR * HALF
            if row < rows and column < columns:
                c[(batch * rows + row) * columns + column] = total[p * RUN + q]


class NumbaCudaUnrolled(NumbaCuda):
    """Arrays of 2³² elements and more are unsupported: the indices have 32 bits."""

    after = "numba_cuda_register"
    adds = "32-bit indices, unrolled inner loop, the next tile loads while this one is multiplied"
    function, side, threads = _matmul, int(TILE), int(THREADS)

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.batch * max(shape.m * shape.k, shape.k * shape.n, shape.m * shape.n) >= 2**32:
            raise UnsupportedError(f"{self}: {shape} has more elements than a 32-bit index counts")

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        sides = tuple(np.uint32(side) for side in (a.shape[1], b.shape[2], a.shape[2]))
        return device_array(a.view(-1)), device_array(b.view(-1)), device_array(c.view(-1)), *sides
