"""CUDA C, coalesced: neighbouring threads in neighbouring columns, so a warp reads B in one transaction."""

from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.devices import thread_block


class CudaCoalesced(CudaC):
    """The naive kernel with its indices swapped. `block` is (columns, rows) of C."""

    after, adds = "cuda_naive", "indices swapped: a warp reads 32 neighbours of B in one access"
    source = "coalesced.cu"
    block_sides = 2

    def launch(self, shape: Shape) -> Launch:
        columns, rows = thread_block(self.block)
        return Launch((columns, rows), (ceil_div(shape.n, columns), ceil_div(shape.m, rows), shape.batch))
