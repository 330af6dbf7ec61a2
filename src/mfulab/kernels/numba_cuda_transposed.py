"""Numba CUDA, coalesced by a transposed operand: the naive order of threads, with A stored so that
a warp reads it contiguously."""

from typing import Any

from numba import cuda

from mfulab.kernels.numba_cuda_naive import NumbaCudaNaive


@cuda.jit
def _matmul(a_transposed, b, c):
    row = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    column = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    batch = cuda.blockIdx.z
    if row < c.shape[1] and column < c.shape[2]:
        total = c.dtype.type(0)
        for k in range(b.shape[1]):
            total += a_transposed[batch, k, row] * b[batch, k, column]
        c[batch, row, column] = total


class NumbaCudaTransposed(NumbaCudaNaive):
    """Transposing A counts only in the end-to-end time. `block` is (rows, columns) of C."""

    after = "numba_cuda_naive"
    adds = "A transposed beforehand: the same threads now read it in one access"
    function = _matmul

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return super().prepare(a.transpose(1, 2).contiguous(), b, c)
