"""CUDA C, double-buffered: the next tiles are loaded while the present ones are multiplied."""

from mfulab.kernels.cuda_tiled import Quads


class CudaDoubleBuffered(Quads):
    """One barrier a step instead of two."""

    after = "cuda_vectorised"
    adds = "the next tiles load while these are multiplied; one barrier a step"
    source = "double_buffered.cu"
    tile = (128, 128, 8)
    stages = 2
