"""Numba on the CPU, naive: the three textbook loops, compiled. Reads B column-wise, one cache line
per element."""

from numba import njit

from mfulab.kernels.base import CpuKernel


@njit
def _matmul(a, b, c):
    for batch in range(a.shape[0]):
        for row in range(a.shape[1]):
            for column in range(b.shape[2]):
                total = c.dtype.type(0)
                for k in range(a.shape[2]):
                    total += a[batch, row, k] * b[batch, k, column]
                c[batch, row, column] = total


class NumbaCpuNaive(CpuKernel):
    """Runs on one core with the loop order row, column, k. Accumulates in the operands' format."""

    after = "python"
    adds = "the same loops compiled to machine code"
    function = _matmul
