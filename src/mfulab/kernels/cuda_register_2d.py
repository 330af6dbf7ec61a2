"""CUDA C, 2-D register tile: each thread computes 8×8 elements."""

from mfulab.kernels.cuda_register_1d import CudaRegister1D


class CudaRegister2D(CudaRegister1D):
    """Needs 16 reads from shared memory for 64 multiply-adds."""

    after = "cuda_register_1d"
    adds = "8×8 elements a thread: 16 shared-memory reads for 64 multiply-adds"
    tile = (128, 128, 8)
    run_n = 8
