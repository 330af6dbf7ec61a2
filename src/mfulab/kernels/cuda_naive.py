"""CUDA C, naive: one thread an element of C, neighbouring threads in neighbouring rows."""

from mfulab.kernels.cuda_coalesced import CudaCoalesced


class CudaNaive(CudaCoalesced):
    """A warp reads A down a column: 32 transactions for one instruction. `block` is (rows, columns)
    of C."""

    after = ""
    adds = "one thread an element of C; a warp touches 32 rows at once"
    rows_first = True
