"""CUDA C for Hopper, results by the copy engine: through swizzled shared memory, while the next
tile is multiplied."""

from mfulab.kernels.hopper import ALIGNMENT, PATCH_BYTES, RING_BYTES, Hopper


class CudaHopperStores(Hopper):
    """Each consuming warpgroup has two patches of 64×64: one is written while the other is on its
    way."""

    after = "cuda_hopper"
    adds = "results leave through swizzled shared memory by bulk copies, while the next tile is multiplied"
    stores = True
    # barriers fill up to a multiple
    shared_memory_bytes = RING_BYTES + ALIGNMENT + 4 * PATCH_BYTES + ALIGNMENT
