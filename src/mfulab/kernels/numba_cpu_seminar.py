"""Numba on the CPU, as written in the seminar: naive loops with `tmp = 0.0`, which Numba types as
float64."""

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
    """Runs on one core. Products are float32, their sum float64. `numba_cpu_naive` differs only in
    its float32 sum."""

    family = "seminar, CPU"
    after = ""
    adds = "as written: the plain loops, summed in float64"
    function = _matmul
    precisions = ("fp32",)
