"""CUDA C, coalesced: neighbouring threads compute neighbouring columns, so that a warp reads B in
one transaction."""

from mfulab.kernels.base import ThreadAnElement
from mfulab.kernels.cuda_c import CudaC


class CudaCoalesced(ThreadAnElement, CudaC):
    """Naive kernel with its indices swapped. `block` is (columns, rows) of C."""

    after = "cuda_naive"
    adds = "indices swapped: a warp reads 32 neighbours of B in one access"
    source = "naive.cu"

    def defines(self) -> dict[str, str]:
        return super().defines() | {"ROWS_FIRST": str(int(self.rows_first))}
