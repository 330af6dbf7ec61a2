"""CUDA C, warp tile: each warp computes 64×32 of C, so that its lanes share more of what they
read."""

from mfulab.kernels.cuda_double_buffered import CudaDoubleBuffered


class CudaWarpTile(CudaDoubleBuffered):
    """Same code as the double-buffered kernel, with the lanes of a warp arranged 8×4."""

    after = "cuda_double_buffered"
    adds = "a warp owns 64×32: fewer distinct shared-memory reads a multiply-add"
    warp = (64, 32)
