"""CUDA C, 2-D register tile: each thread computes 8×8 elements."""

from mfulab.kernels.cuda_tiled import Tiled


class CudaRegister2D(Tiled):
    """Sixteen reads from shared memory for 64 multiply-adds."""

    after, adds = "cuda_register_1d", "8×8 elements a thread: 16 shared-memory reads for 64 multiply-adds"
    source = "register_2d.cu"
    tile = (128, 128, 8)
