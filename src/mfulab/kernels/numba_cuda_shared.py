"""Numba CUDA, shared-memory tiles: each block loads a tile of A and of B once and uses each value
TILE times."""

import functools
from typing import Any

from numba import cuda, float32, float64

from mfulab.kernels.base import ThreadAnElement
from mfulab.kernels.devices import thread_block
from mfulab.kernels.numba_cuda import NumbaCuda


@functools.cache
def compiled(tile: int, real: Any) -> Any:
    """Kernel for tiles of tile×tile elements of a Numba type."""

    @cuda.jit
    def matmul(a, b, c):
        # On separate lines, as the simulator identifies shared arrays by source line.
        tile_a = cuda.shared.array((tile, tile), real)
        tile_b = cuda.shared.array((tile, tile), real)
        column, row = cuda.grid(2)
        batch = cuda.blockIdx.z
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        inner = a.shape[2]
        total = real(0)
        for start in range(0, inner, tile):
            tile_a[y, x] = (
                a[batch, row, start + x] if row < a.shape[1] and start + x < inner else real(0)
            )
            tile_b[y, x] = (
                b[batch, start + y, column]
                if start + y < inner and column < b.shape[2]
                else real(0)
            )
            cuda.syncthreads()
            for k in range(tile):
                total += tile_a[y, k] * tile_b[k, x]
            cuda.syncthreads()
        if row < c.shape[1] and column < c.shape[2]:
            c[batch, row, column] = total

    return matmul


class NumbaCudaShared(ThreadAnElement, NumbaCuda):
    """Reads device memory a TILE-th as often as the coalesced kernel. `block` is (TILE, TILE)."""

    after = "numba_cuda_coalesced"
    adds = "tiles in shared memory: a 32nd of the device-memory traffic"
    precisions = ("fp32", "fp64")
    is_square = True

    def dispatcher(self) -> Any:
        return compiled(
            thread_block(self.block)[0], float32 if self.precision == "fp32" else float64
        )
