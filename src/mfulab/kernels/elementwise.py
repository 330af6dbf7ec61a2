"""The smallest custom kernel: the element-wise product c[i] = a[i]·b[i], the first thing to write in CUDA C."""

from typing import Any

from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.cuda_c import CudaC

BLOCK = 256


class Elementwise(CudaC):
    """No matrix product: one multiplication for 12 bytes in float32, so the memory's bandwidth is its ceiling.

    Arrays of one shape, m × n; of a `Shape` only batch, m and n count.
    """

    rung, adds = 0, "one thread an element, nothing shared: the smallest kernel"
    source = "elementwise.cu"
    entry = "multiply"

    def launch(self, shape: Shape) -> Launch:
        return Launch((BLOCK,), (ceil_div(shape.batch * shape.m * shape.n, BLOCK),))

    def run(self, *operands: Any, launch: Launch) -> None:
        import numpy as np

        a, b, c = operands
        self.enqueue(launch, a.data_ptr(), b.data_ptr(), c.data_ptr(), np.int64(c.numel()))
