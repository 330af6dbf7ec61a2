"""CUDA C, 1-D register tile: each thread computes eight elements of one column."""

from mfulab.kernels.cuda_tiled import Tiled


class CudaRegister1D(Tiled):
    """Uses each value of B eight times from a register after reading it from shared memory."""

    after = "cuda_shared"
    adds = "eight elements a thread: a value of B serves eight multiply-adds"
    source = "register.cu"
    tile = (64, 64, 8)
    run_n = 1
