"""Numba on the CPU, naive: the textbook's three loops, compiled. Walks B down its columns, a cache line an element."""

from typing import Any

from numba import njit

from mfulab.kernels.base import Launch, MatmulKernel


@njit
def _matmul(a, b, c):
    for batch in range(a.shape[0]):
        for row in range(a.shape[1]):
            for column in range(b.shape[2]):
                total = c.dtype.type(0)
                for k in range(a.shape[2]):
                    total += a[batch, row, k] * b[batch, k, column]
                c[batch, row, column] = total


class NumbaCpuNaive(MatmulKernel):
    """One core, loops in the order row, column, k; accumulates in the operands' own format."""

    family, after = "CPU", "python"
    adds = "the same loops compiled to machine code"
    devices = ("cpu",)
    precisions = ("fp64", "fp32")

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return a.numpy(), b.numpy(), c.numpy()

    def run(self, *operands: Any, launch: Launch) -> None:
        _matmul(*operands)
