"""CUDA C for Hopper, results by the copy engine: through swizzled shared memory, while the next tile is multiplied."""

from mfulab.kernels.hopper import HopperStores


class CudaHopperStores(HopperStores):
    """Two patches of C for each warpgroup: one is written while the other is on its way."""

    after = "cuda_hopper"
    adds = "results leave through swizzled shared memory by bulk copies, while the next tile is multiplied"
