"""CUDA C for Hopper, results by the copy engine: through swizzled shared memory, while the next tile is multiplied."""

from typing import Any

from mfulab.kernels.cuda_hopper import ALIGNMENT, BOX, PATCH_BYTES, RING_BYTES, CudaHopper, View


class CudaHopperStores(CudaHopper):
    """Each consuming warpgroup has two patches of 64×64 in shared memory, of which one may be on its way out."""

    rung, adds = 14, "results leave through swizzled shared memory by bulk copies, while the next tile is multiplied"
    source = "hopper_stores.cu"
    shared_memory_bytes = RING_BYTES + 1024 + 4 * PATCH_BYTES + ALIGNMENT

    def views(self, a: Any, b: Any, c: Any) -> list[View]:
        batch, m, n = c.shape
        return [*super().views(a, b, c), View(c, (n, m, batch), (BOX, BOX, 1))]

    def pointers(self, c: Any) -> list[Any]:
        return []
