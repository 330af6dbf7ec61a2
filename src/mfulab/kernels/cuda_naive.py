"""CUDA C, naive: one thread an element of C, neighbouring threads in neighbouring rows."""

from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.devices import thread_block


class CudaNaive(CudaC):
    """A warp reads A down a column: 32 transactions for one instruction. `block` is (rows, columns) of C."""

    after, adds = "", "one thread an element of C; a warp touches 32 rows at once"
    source = "naive.cu"
    block_sides = 2

    def launch(self, shape: Shape) -> Launch:
        rows, columns = thread_block(self.block)
        return Launch((rows, columns), (ceil_div(shape.n, columns), ceil_div(shape.m, rows), shape.batch))
