"""CUDA C, warp tile: each warp owns 64×32 of C, so its lanes share more of what they read."""

from mfulab.kernels.cuda_double_buffered import CudaDoubleBuffered


class CudaWarpTile(CudaDoubleBuffered):
    """The double-buffered rung's code, with its lanes 8×4 to a warp."""

    after = "cuda_double_buffered"
    adds = "a warp owns 64×32: fewer distinct shared-memory reads a multiply-add"
    warp = (64, 32)
