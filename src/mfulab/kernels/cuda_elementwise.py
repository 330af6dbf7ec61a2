"""Element-wise product c[i] = a[i]·b[i], the simplest CUDA C kernel."""

from typing import Any

import numpy as np

from mfulab.kernels.base import ElementWise, Launch, Shape, ceil_div
from mfulab.kernels.cuda_c import CudaC

BLOCK = 256


class CudaElementwise(ElementWise, CudaC):
    """Does one multiplication per 12 bytes in float32."""

    after = ""
    adds = "one thread an element, nothing shared: the smallest kernel"
    source = "elementwise.cu"
    entry = "multiply"

    def launch(self, shape: Shape) -> Launch:
        return Launch((BLOCK,), (ceil_div(shape.batch, BLOCK),))

    def run(self, *operands: Any, launch: Launch) -> None:
        self.enqueue(launch, operands, np.int64(operands[2].numel()))
