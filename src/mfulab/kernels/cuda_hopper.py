"""CUDA C for Hopper: tiles by the bulk copy engine (TMA), warpgroup matmuls (wgmma), warps with
different jobs."""

from mfulab.kernels.hopper import Hopper


class CudaHopper(Hopper):
    """A lane writes 16 bytes of C at a time, gathered from the four lanes of its row."""

    after = "cuda_mma"
    adds = "Hopper: bulk copies by one warp, products by two warpgroups, blocks that stay for tile after tile"
