"""Numba on the CPU, loops reordered: the innermost loop runs along rows of B and C, so it is
contiguous and vectorises."""

from numba import njit

from mfulab.kernels.base import CpuKernel


@njit(fastmath={"contract"})
def _matmul(a, b, c):
    c[:] = 0
    for batch in range(a.shape[0]):
        for row in range(a.shape[1]):
            c_row = c[batch, row]
            for k in range(a.shape[2]):
                value = a[batch, row, k]
                b_row = b[batch, k]
                for column in range(c_row.size):
                    c_row[column] += value * b_row[column]


class NumbaCpuReordered(CpuKernel):
    """Runs on one core with the loop order row, k, column. The fastmath flag `contract` only
    permits fused multiply-adds."""

    after = "numba_cpu_naive"
    adds = "loop order row, k, column: contiguous, so it vectorises"
    function = _matmul
