"""NumPy's matmul, by the BLAS that NumPy was built with (OpenBLAS in the wheels)."""

from typing import Any

import numpy as np

from mfulab.kernels.base import CpuKernel, Launch


class Numpy(CpuKernel):
    """Calls `numpy.matmul` with an existing output array."""

    after = "numba_cpu_blocked"
    adds = "OpenBLAS: hand-written assembly for this processor"

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c = operands
        np.matmul(a, b, out=c)
