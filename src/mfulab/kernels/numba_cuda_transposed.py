"""Numba CUDA, coalesced by a transposed operand: the naive thread order, A stored so that a warp reads it in a row."""

from typing import Any

from numba import cuda

from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.devices import thread_block
from mfulab.kernels.numba_cuda import NumbaCuda, device_array


@cuda.jit
def _matmul(a_transposed, b, c):
    row = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    column = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    batch = cuda.blockIdx.z
    if row < c.shape[1] and column < c.shape[2]:
        total = c.dtype.type(0)
        for k in range(b.shape[1]):
            total += a_transposed[batch, k, row] * b[batch, k, column]
        c[batch, row, column] = total


class NumbaCudaTransposed(NumbaCuda):
    """Transposing A is not in the kernel's time, but in the end-to-end time. `block` is (rows, columns) of C."""

    after, adds = "numba_cuda_naive", "A transposed beforehand: the same threads now read it in one access"
    precisions = ("fp32", "fp64")
    function = _matmul
    block_sides = 2

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return device_array(a.transpose(1, 2).contiguous()), device_array(b), device_array(c)

    def launch(self, shape: Shape) -> Launch:
        rows, columns = thread_block(self.block)
        return Launch((rows, columns), (ceil_div(shape.n, columns), ceil_div(shape.m, rows), shape.batch))
