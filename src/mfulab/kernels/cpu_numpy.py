"""NumPy: the BLAS that it was built with (OpenBLAS in the wheels)."""

from typing import Any

import numpy as np

from mfulab.kernels.base import Launch, MatmulKernel


class Numpy(MatmulKernel):
    """`numpy.matmul` into an array that exists already."""

    family, after = "CPU", "numba_cpu_blocked"
    adds = "OpenBLAS: hand-written assembly for this processor"
    devices = ("cpu",)
    precisions = ("fp64", "fp32")

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return a.numpy(), b.numpy(), c.numpy()

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c = operands
        np.matmul(a, b, out=c)
