"""CUDA C for Hopper: loads tiles by the bulk copy engine (TMA) and multiplies by warpgroup
instructions (wgmma), in specialised warps."""

from mfulab.kernels.hopper import Hopper


class CudaHopper(Hopper):
    """Each lane writes 16 bytes of C at a time, gathered from the four lanes of its row."""

    after = "cuda_mma"
    adds = "Hopper: bulk copies by one warp, products by two warpgroups, blocks that stay for tile after tile"
