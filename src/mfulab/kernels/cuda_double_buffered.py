"""CUDA C, double-buffered: loads the next tiles while multiplying the current ones."""

from mfulab.kernels.cuda_tiled import Quads


class CudaDoubleBuffered(Quads):
    """Needs one barrier per step instead of two."""

    after = "cuda_vectorised"
    adds = "the next tiles load while these are multiplied; one barrier a step"
    source = "double_buffered.cu"
    tile = (128, 128, 8)
    stages = 2
