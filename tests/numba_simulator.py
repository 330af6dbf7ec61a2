"""Run with NUMBA_ENABLE_CUDASIM=1: every Numba CUDA rung on CPU tensors, its errors printed as JSON."""

import importlib
import json
import sys

import numpy as np

from mfulab.kernels import numba_cuda_tensor_core as tensor_core
from mfulab.kernels.base import Shape
from mfulab.kernels.formats import FORMATS
from mfulab.kernels.verification import check, exact_product, random_operands

_fragments: dict = {}


def rounded_to_tf32(value):
    word = np.float32(value).view(np.uint32)
    return ((word + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def warp_product(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """`mma.sync.m16n8k8` after the PTX ISA: every lane shows its fragments, then computes its own four results."""
    cuda = tensor_core.cuda  # while a kernel runs the simulator puts its thread's own module there
    thread = cuda.threadIdx.x
    _fragments[thread] = (a0, a1, a2, a3, b0, b1)
    cuda.syncthreads()
    first, lane = thread // 32 * 32, thread % 32
    a, b = np.empty((16, 8), np.float32), np.empty((8, 8), np.float32)
    for other in range(32):
        g, t = other // 4, other % 4
        a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4], b[t, g], b[t + 4, g] = _fragments[first + other]
    cuda.syncthreads()
    g, t = lane // 4, lane % 4
    d = a[[g, g + 8]] @ b[:, 2 * t : 2 * t + 2]
    return c0 + d[0, 0], c1 + d[0, 1], c2 + d[1, 0], c3 + d[1, 1]


def error_of(module: str, name: str, precision: str, block, shape: Shape) -> dict:
    found = importlib.import_module(f"mfulab.kernels.{module}")
    kernel = getattr(found, name)(precision, block)
    form = FORMATS[precision]
    operands = random_operands(shape, form, "cpu", seed=11)
    operands.poison()
    kernel.run(*kernel.prepare(operands.a, operands.b, operands.c), launch=kernel.launch(shape))
    result = check(operands.c, exact_product(operands.a, operands.b), form, shape.k)
    return {"correct": result.correct, "effective": result.effective_precision, "said": str(result)}


if __name__ == "__main__":
    tensor_core.product, tensor_core.to_tf32 = warp_product, rounded_to_tf32
    cases = json.loads(sys.argv[1])
    answers = [
        error_of(module, name, precision, block, Shape(*shape)) for module, name, precision, block, shape in cases
    ]
    print(json.dumps(answers))
