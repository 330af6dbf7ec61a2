"""Numba CUDA, shared-memory tiles as written in the seminar: `shared_A[tx, ty]`, without guards at
the edges."""

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
        shared_a = cuda.shared.array((tile, tile), float32)
        shared_b = cuda.shared.array((tile, tile), float32)
        x, y, batch = cuda.grid(3)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        tmp = 0.0
        for i in range((a.shape[2] + tile - 1) // tile):
            # Beyond the edge this reads the next row, and beyond the last row arbitrary memory.
            shared_a[tx, ty] = a[batch, x, ty + i * tile]
            shared_b[tx, ty] = b[batch, tx + i * tile, y]
            cuda.syncthreads()
            for k in range(tile):
                tmp += shared_a[tx, k] * shared_b[k, ty]
            cuda.syncthreads()
        if x < c.shape[1] and y < c.shape[2]:
            c[batch, x, y] = tmp

    return matmul


class NumbaCudaSeminarShared(NumbaCudaSeminar):
    """Correct only if all sides are multiples of TILE; `numba_cuda_shared` has no such limit.
    `block` is (TILE, TILE)."""

    after = "numba_cuda_seminar_transposed"
    adds = "as written: tiles in shared memory, each filled by strided reads and without guards"
    is_square = True

    def dispatcher(self) -> Any:
        return compiled(thread_block(self.block)[0])
