"""CUDA C, warp tile: each warp owns 64×32 of C, so its lanes share more of what they read."""

from mfulab.kernels.cuda_tiled import WarpTiles


class CudaWarpTile(WarpTiles):
    """Double-buffered as the rung below."""

    after, adds = "cuda_double_buffered", "a warp owns 64×32: fewer distinct shared-memory reads a multiply-add"
    source = "warp_tile.cu"
