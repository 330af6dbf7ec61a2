"""Numba CUDA, as written in the seminar, with B transposed. This does not help, because it is A
that a warp reads with a stride."""

from typing import Any

from numba import cuda

from mfulab.kernels.numba_cuda_seminar import NumbaCudaSeminar


@cuda.jit
def _matmul(a, b_transposed, c):
    row, column, batch = cuda.grid(3)
    if row < c.shape[1] and column < c.shape[2]:
        tmp = 0.0
        for k in range(a.shape[2]):
            tmp += a[batch, row, k] * b_transposed[batch, column, k]
        c[batch, row, column] = tmp


class NumbaCudaSeminarTransposed(NumbaCudaSeminar):
    """Threads of a warp share a column, so they read one element of B in either layout.
    `numba_cuda_transposed` transposes A instead."""

    after = "numba_cuda_seminar"
    adds = "as written: B transposed, though a warp reads it at one place in any case"
    function = _matmul

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return super().prepare(a, b.transpose(1, 2).contiguous(), c)
