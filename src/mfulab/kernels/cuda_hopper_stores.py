"""CUDA C for Hopper, stores by the copy engine: through swizzled shared memory, while the next tile
is multiplied."""

from mfulab.kernels.hopper import ALIGNMENT, PATCH_BYTES, RING_BYTES, Hopper


class CudaHopperStores(Hopper):
    """Gives each consumer warpgroup two 64×64 patches in shared memory. One is filled while the
    other is being stored."""

    after = "cuda_hopper"
    adds = "results leave through swizzled shared memory by bulk copies, while the next tile is multiplied"
    stores = True
    # the first ALIGNMENT includes the barriers, padded to a multiple of it
    shared_memory_bytes = RING_BYTES + ALIGNMENT + 4 * PATCH_BYTES + ALIGNMENT
