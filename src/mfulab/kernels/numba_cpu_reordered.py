"""Numba on the CPU, loops reordered: the innermost walks along rows of B and C, so it is contiguous and vectorises."""

from typing import Any

from numba import njit

from mfulab.kernels.base import Launch, MatmulKernel


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


class NumbaCpuReordered(MatmulKernel):
    """One core, loops in the order row, k, column. `contract` permits fused multiply-adds, nothing else."""

    family, after = "CPU", "numba_cpu_naive"
    adds = "loop order row, k, column: contiguous, so it vectorises"
    devices = ("cpu",)
    precisions = ("fp64", "fp32")

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return a.numpy(), b.numpy(), c.numpy()

    def run(self, *operands: Any, launch: Launch) -> None:
        _matmul(*operands)
