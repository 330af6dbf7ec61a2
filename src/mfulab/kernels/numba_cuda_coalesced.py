"""Numba CUDA, coalesced by swapped indices: neighbouring threads compute neighbouring columns.
Nothing is transposed."""

from numba import cuda

from mfulab.kernels.base import ThreadAnElement
from mfulab.kernels.numba_cuda import NumbaCuda


@cuda.jit
def _matmul(a, b, c):
    column, row, batch = cuda.grid(3)
    if row < c.shape[1] and column < c.shape[2]:
        total = c.dtype.type(0)
        for k in range(a.shape[2]):
            total += a[batch, row, k] * b[batch, k, column]
        c[batch, row, column] = total


class NumbaCudaCoalesced(ThreadAnElement, NumbaCuda):
    """Naive kernel with its indices swapped. `block` is (columns, rows) of C."""

    after = "numba_cuda_transposed"
    adds = "indices swapped: a warp reads 32 neighbours of B in one access"
    precisions = ("fp32", "fp64")
    function = _matmul
