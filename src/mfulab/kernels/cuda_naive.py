"""CUDA C, naive: one thread an element of C, neighbouring threads in neighbouring rows."""

from mfulab.kernels.base import ThreadAnElement
from mfulab.kernels.cuda_c import CudaC


class CudaNaive(ThreadAnElement, CudaC):
    """A warp reads A down a column: 32 transactions for one instruction. `block` is (rows, columns) of C."""

    after, adds = "", "one thread an element of C; a warp touches 32 rows at once"
    source = "naive.cu"
    rows_first = True
