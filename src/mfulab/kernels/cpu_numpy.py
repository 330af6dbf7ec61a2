"""NumPy: the BLAS that it was built with (OpenBLAS in the wheels)."""

from typing import Any

import numpy as np

from mfulab.kernels.base import CpuKernel, Launch


class Numpy(CpuKernel):
    """`numpy.matmul` into an array that exists already."""

    after = "numba_cpu_blocked"
    adds = "OpenBLAS: hand-written assembly for this processor"

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c = operands
        np.matmul(a, b, out=c)
