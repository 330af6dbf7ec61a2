"""CUDA C, naive: one thread per element of C, neighbouring threads in neighbouring rows."""

from mfulab.kernels.cuda_coalesced import CudaCoalesced


class CudaNaive(CudaCoalesced):
    """Reads A column-wise in each warp: 32 transactions per instruction. `block` is (rows, columns)
    of C."""

    after = ""
    adds = "one thread an element of C; a warp touches 32 rows at once"
    rows_first = True
