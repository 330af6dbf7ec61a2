"""CUDA C for Hopper: tiles by the bulk copy engine (TMA), warpgroup matmuls (wgmma), warps with different jobs."""

from mfulab.kernels.hopper import Hopper


class CudaHopper(Hopper):
    """A lane writes 4 bytes of C at a time."""

    after = "cuda_wmma"
    adds = "Hopper: bulk copies by one warp, products by two warpgroups, blocks that stay for tile after tile"
    source = "hopper.cu"
