"""Numba CUDA, shared-memory tiles as the seminar writes them: `shared_A[tx, ty]`, no guard where a tile overhangs."""

import functools
from collections.abc import Sequence
from typing import Any

from numba import cuda, float32

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.devices import thread_block
from mfulab.kernels.numba_cuda import NumbaCuda


@functools.cache
def compiled(tile: int) -> Any:
    """The kernel for tiles of tile×tile elements."""

    @cuda.jit
    def matmul(a, b, c):
        shared_a = cuda.shared.array((tile, tile), float32)
        shared_b = cuda.shared.array((tile, tile), float32)
        x, y, batch = cuda.grid(3)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        tmp = 0.0
        for i in range((a.shape[2] + tile - 1) // tile):
            # Beyond the edge this reads the next row, and beyond the last row whatever lies there.
            shared_a[tx, ty] = a[batch, x, ty + i * tile]
            shared_b[tx, ty] = b[batch, tx + i * tile, y]
            cuda.syncthreads()
            for k in range(tile):
                tmp += shared_a[tx, k] * shared_b[k, ty]
            cuda.syncthreads()
        if x < c.shape[1] and y < c.shape[2]:
            c[batch, x, y] = tmp

    return matmul


class NumbaCudaSeminarShared(NumbaCuda):
    """Right where the sides are multiples of TILE alone. `block` is (TILE, TILE); `numba_cuda_shared` is corrected."""

    family = "seminar, CUDA"
    after, adds = (
        "numba_cuda_seminar_transposed",
        "as written: tiles in shared memory, each filled by strided reads and without guards",
    )
    block_sides = 2

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        if self.block and self.block[0] != self.block[1]:
            raise UnsupportedError(f"{self}: block={list(self.block)} must be square")

    def dispatcher(self) -> Any:
        return compiled(thread_block(self.block)[0])

    def launch(self, shape: Shape) -> Launch:
        rows, columns = thread_block(self.block)
        return Launch((rows, columns), (ceil_div(shape.m, rows), ceil_div(shape.n, columns), shape.batch))
