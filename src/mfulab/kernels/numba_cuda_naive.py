"""Numba CUDA, naive: one thread per element of C, neighbouring threads in neighbouring rows."""

from numba import cuda

from mfulab.kernels.base import ThreadAnElement
from mfulab.kernels.numba_cuda import NumbaCuda


@cuda.jit
def _matmul(a, b, c):
    row = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    column = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    batch = cuda.blockIdx.z
    if row < c.shape[1] and column < c.shape[2]:
        total = c.dtype.type(0)  # 0.0 would accumulate in float64
        for k in range(a.shape[2]):
            total += a[batch, row, k] * b[batch, k, column]
        c[batch, row, column] = total


class NumbaCudaNaive(ThreadAnElement, NumbaCuda):
    """Reads A column-wise in each warp: 32 transactions per instruction. `block` is (rows, columns)
    of C."""

    after = ""
    adds = "one thread an element of C; a warp touches 32 rows at once"
    precisions = ("fp32", "fp64")
    function = _matmul
    rows_first = True
