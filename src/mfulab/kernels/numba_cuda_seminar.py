"""Numba CUDA, naive, as written in the seminar: `tmp = 0.0` is float64, and neighbouring threads
compute one column."""

from numba import cuda

from mfulab.kernels.base import Launch, Shape, ThreadAnElement
from mfulab.kernels.numba_cuda import NumbaCuda


@cuda.jit
def _matmul(a, b, c):
    row, column, batch = cuda.grid(3)
    if row < c.shape[1] and column < c.shape[2]:
        tmp = 0.0
        for k in range(a.shape[2]):
            tmp += a[batch, row, k] * b[batch, k, column]
        c[batch, row, column] = tmp


class NumbaCudaSeminar(ThreadAnElement, NumbaCuda):
    """Sums in float64; `numba_cuda_naive` differs only in its float32 sum. `block` is (rows,
    columns) of C."""

    family = "seminar, CUDA"
    after = ""
    adds = "as written: summed in float64; a warp touches 32 rows of A at once"
    function = _matmul

    def launch(self, shape: Shape) -> Launch:
        # the first side of this grid counts rows
        return super().launch(shape._replace(m=shape.n, n=shape.m))
