"""Numba CUDA, the seminar's shared-memory tiles with guards: elements beyond an edge are zeros."""

import functools
from typing import Any

from numba import cuda, float32

from mfulab.kernels.devices import thread_block
from mfulab.kernels.numba_cuda_seminar import NumbaCudaSeminar


@functools.cache
def compiled(tile: int) -> Any:
    """Kernel for tiles of tile×tile elements."""

    @cuda.jit
    def matmul(a, b, c):
        # On separate lines, as the simulator identifies shared arrays by source line.
        shared_a = cuda.shared.array((tile, tile), float32)
        shared_b = cuda.shared.array((tile, tile), float32)
        x, y, batch = cuda.grid(3)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        inner = a.shape[2]
        tmp = 0.0
        for i in range((inner + tile - 1) // tile):
            shared_a[tx, ty] = 0
            shared_b[tx, ty] = 0
            if x < a.shape[1] and ty + i * tile < inner:
                shared_a[tx, ty] = a[batch, x, ty + i * tile]
            if tx + i * tile < inner and y < b.shape[2]:
                shared_b[tx, ty] = b[batch, tx + i * tile, y]
            cuda.syncthreads()
            for k in range(tile):
                tmp += shared_a[tx, k] * shared_b[k, ty]
            cuda.syncthreads()
        if x < c.shape[1] and y < c.shape[2]:
            c[batch, x, y] = tmp

    return matmul


class NumbaCudaSeminarGuarded(NumbaCudaSeminar):
    """Correct for all shapes. Its reads stay strided, as in the seminar. `block` is (TILE,
    TILE)."""

    after = "numba_cuda_seminar_shared"
    adds = "guards: where a tile of the text overhangs, it holds zeros"
    is_square = True

    def dispatcher(self) -> Any:
        return compiled(thread_block(self.block)[0])
