"""Numba on the CPU, as written in the seminar, with B transposed: both operands are read
row-wise."""

from typing import Any

from numba import njit

from mfulab.kernels.numba_cpu_seminar import NumbaCpuSeminar


@njit
def _matmul(a, b_transposed, c):
    for batch in range(a.shape[0]):
        for row in range(a.shape[1]):
            for column in range(b_transposed.shape[1]):
                tmp = 0.0
                for k in range(a.shape[2]):
                    tmp += a[batch, row, k] * b_transposed[batch, column, k]
                c[batch, row, column] = tmp


class NumbaCpuSeminarTransposed(NumbaCpuSeminar):
    """Transposing B counts only in the end-to-end time."""

    after = "numba_cpu_seminar"
    adds = "as written: B transposed, so that a core reads both operands in order"
    function = _matmul

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return super().prepare(a, b.transpose(1, 2).contiguous(), c)
