"""Pure Python: three nested loops over lists, to show the cost of the interpreter."""

from typing import Any

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import CpuKernel, Launch, Shape

LARGEST = 2**27  # multiply-adds, which take about ten seconds


class Python(CpuKernel):
    """Accumulates in float64, because Python's floats are. A and B are converted to lists
    beforehand."""

    adds = "three nested loops in the interpreter"

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.flops > 2 * LARGEST:
            raise UnsupportedError(
                Said(
                    "too_many_for_python",
                    kernel=str(self),
                    shape=str(shape),
                    flops=shape.flops,
                )
            )

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return a.tolist(), b.tolist(), c.numpy()

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c = operands
        for a_matrix, b_matrix, c_matrix in zip(a, b, c, strict=True):
            columns = range(len(b_matrix[0]))
            for row, c_row in zip(a_matrix, c_matrix, strict=True):
                for column in columns:
                    total = 0.0
                    for k, value in enumerate(row):
                        total += value * b_matrix[k][column]
                    c_row[column] = total
