"""Numba on the CPU, as the seminar writes it: the naive loops with `tmp = 0.0`, which Numba takes
for float64."""

from numba import njit

from mfulab.kernels.base import CpuKernel


@njit
def _matmul(a, b, c):
    for batch in range(a.shape[0]):
        for row in range(a.shape[1]):
            for column in range(b.shape[2]):
                tmp = 0.0
                for k in range(a.shape[2]):
                    tmp += a[batch, row, k] * b[batch, k, column]
                c[batch, row, column] = tmp


class NumbaCpuSeminar(CpuKernel):
    """One core; products in float32, their sum in float64. `numba_cpu_naive` is the same with a
    float32 sum."""

    family = "seminar, CPU"
    after = ""
    adds = "as written: the plain loops, summed in float64"
    function = _matmul
    precisions = ("fp32",)
