"""Runs Numba CUDA kernels on CPU tensors with NUMBA_ENABLE_CUDASIM=1, and prints their errors as
JSON.

The simulator does not run inline PTX, so each intrinsic is replaced by its behaviour in the PTX
ISA. Copies finish as late as the next wait allows.
"""

import importlib
import itertools
import json
import sys
from collections import defaultdict

import numpy as np

from mfulab.core.formats import FORMATS
from mfulab.kernels import numba_cuda_async, numba_cuda_tensor_core, numba_cuda_wide
from mfulab.kernels.base import Shape
from mfulab.kernels.verification import check, exact_product, random_operands

WARPS = 8
# Fragments by warp, double-buffered, so that one barrier per product is enough.
_a, _b = np.empty((2, WARPS, 16, 8), np.float32), np.empty((2, WARPS, 8, 8), np.float32)
_turn = [0] * WARPS * 32
_rows = np.zeros((2, WARPS, 32), int)  # row indices of a warp's lanes for a matrix load
_groups = defaultdict(lambda: [[]])  # unfinished copies of each thread, the open group last
_running = []  # module of the running kernel, where the simulator puts its thread's `cuda`


def rounded_to_tf32(value):
    word = np.float32(value).view(np.uint32)
    return ((word + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def warp_product(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """`mma.sync.m16n8k8` as in the PTX ISA: every lane writes its fragments, then computes its own
    four results."""
    cuda = _running[-1].cuda
    thread = cuda.threadIdx.x
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    _turn[thread] ^= 1
    a, b = _a[_turn[thread], warp], _b[_turn[thread], warp]
    a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4], b[t, g], b[t + 4, g] = (
        a0,
        a1,
        a2,
        a3,
        b0,
        b1,
    )
    cuda.syncthreads()
    d = a[[g, g + 8]] @ b[:, 2 * t : 2 * t + 2]
    return c0 + d[0, 0], c1 + d[0, 1], c2 + d[1, 0], c3 + d[1, 1]


def _this():
    cuda = _running[-1].cuda
    return cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z, cuda.threadIdx.x


def late_copy(tile, to, source, start, is_inside):
    assert to % 4 == 0
    assert not is_inside or start % 4 == 0
    for place in range(4):
        late_element(tile, to + place, source, start + place, is_inside)


def late_element(tile, to, source, start, is_inside):
    _groups[_this()][-1].append((tile, to, source, start, is_inside))


def commit():
    _groups[_this()].append([])


def end_all_but_one():
    *ended, last, opened = _groups[_this()]
    for tile, to, source, start, is_inside in itertools.chain.from_iterable(ended):
        tile[to] = source[start] if is_inside else np.float32(0)
    _groups[_this()] = [last, opened]


def warp_load(tile, at):
    """`ldmatrix.x4` as in the PTX ISA. From matrix i, a lane receives element lane % 4 of the row
    given by lane 8·i + lane / 4."""
    cuda = _running[-1].cuda
    thread = cuda.threadIdx.x
    warp, lane = thread // 32, thread % 32
    _turn[thread] ^= 1
    rows = _rows[_turn[thread], warp]
    assert at % 4 == 0
    rows[lane] = at
    cuda.syncthreads()
    return tuple(tile[rows[8 * number + lane // 4] + lane % 4] for number in range(4))


def error_of(module: str, name: str, precision: str, block, shape: Shape) -> dict:
    found = importlib.import_module(f"mfulab.kernels.{module}")
    kernel = getattr(found, name)(precision, block)
    form = FORMATS[precision]
    operands = random_operands(shape, form, "cpu", seed=11)
    operands.poison()
    _groups.clear()
    _running.append(found)
    try:
        kernel.run(*kernel.prepare(operands.a, operands.b, operands.c), launch=kernel.launch(shape))
    except IndexError as outside:  # a GPU would not report it
        return {"correct": False, "effective": None, "said": str(outside)}
    result = check(operands.c, exact_product(operands.a, operands.b), form, shape.k)
    return {"correct": result.correct, "effective": result.effective_precision, "said": str(result)}


if __name__ == "__main__":
    for kernels in (numba_cuda_tensor_core, numba_cuda_async):
        kernels.product, kernels.to_tf32 = warp_product, rounded_to_tf32
    for kernels in (numba_cuda_async, numba_cuda_wide):
        kernels.copy_pack, kernels.copy_element = late_copy, late_element
        kernels.commit_copies, kernels.wait_for_all_but_one = commit, end_all_but_one
    numba_cuda_async.load_matrices = warp_load
    cases = json.loads(sys.argv[1])
    answers = [
        error_of(module, name, precision, block, Shape(*shape))
        for module, name, precision, block, shape in cases
    ]
    print(json.dumps(answers))
