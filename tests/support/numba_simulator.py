"""Run with NUMBA_ENABLE_CUDASIM=1: every Numba CUDA rung on CPU tensors, its errors printed as JSON."""

import importlib
import json
import sys

import numpy as np

from mfulab.core.formats import FORMATS
from mfulab.kernels import numba_cuda_tensor_core as tensor_core
from mfulab.kernels.base import Shape
from mfulab.kernels.verification import check, exact_product, random_operands

WARPS = 8
# Fragments by warp, in two places that take turns: one barrier a product is enough.
_a, _b = np.empty((2, WARPS, 16, 8), np.float32), np.empty((2, WARPS, 8, 8), np.float32)
_turn = [0] * WARPS * 32


def rounded_to_tf32(value):
    word = np.float32(value).view(np.uint32)
    return ((word + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def warp_product(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """`mma.sync.m16n8k8` after the PTX ISA: every lane lays down its fragments, then computes its own four results."""
    cuda = tensor_core.cuda  # while a kernel runs the simulator puts its thread's own module there
    thread = cuda.threadIdx.x
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    _turn[thread] ^= 1
    a, b = _a[_turn[thread], warp], _b[_turn[thread], warp]
    a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4], b[t, g], b[t + 4, g] = a0, a1, a2, a3, b0, b1
    cuda.syncthreads()
    d = a[[g, g + 8]] @ b[:, 2 * t : 2 * t + 2]
    return c0 + d[0, 0], c1 + d[0, 1], c2 + d[1, 0], c3 + d[1, 1]


def error_of(module: str, name: str, precision: str, block, shape: Shape) -> dict:
    found = importlib.import_module(f"mfulab.kernels.{module}")
    kernel = getattr(found, name)(precision, block)
    form = FORMATS[precision]
    operands = random_operands(shape, form, "cpu", seed=11)
    operands.poison()
    try:
        kernel.run(*kernel.prepare(operands.a, operands.b, operands.c), launch=kernel.launch(shape))
    except IndexError as outside:  # on a GPU nothing would be said
        return {"correct": False, "effective": None, "said": str(outside)}
    result = check(operands.c, exact_product(operands.a, operands.b), form, shape.k)
    return {"correct": result.correct, "effective": result.effective_precision, "said": str(result)}


if __name__ == "__main__":
    tensor_core.product, tensor_core.to_tf32 = warp_product, rounded_to_tf32
    cases = json.loads(sys.argv[1])
    answers = [
        error_of(module, name, precision, block, Shape(*shape)) for module, name, precision, block, shape in cases
    ]
    print(json.dumps(answers))
