"""Pure Python: three loops over lists. What the interpreter costs."""

from typing import Any

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import CpuKernel, Launch, Shape

LARGEST = 2**27  # multiply-adds: about ten seconds


class Python(CpuKernel):
    """Accumulates in float64, which Python's floats are; A and B are turned into lists
    beforehand."""

    adds = "three nested loops in the interpreter"

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.flops > 2 * LARGEST:
            raise UnsupportedError(
                Said(
                    "too_many_for_python",
                    {"kernel": str(self), "shape": str(shape), "flops": shape.flops},
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
