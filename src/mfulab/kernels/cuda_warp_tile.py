"""CUDA C, warp tile: each warp owns 64×32 of C, so its lanes share more of what they read."""

from collections.abc import Sequence

from mfulab.kernels.cuda_tiled import Quads
from mfulab.schema.errors import UnsupportedError


class CudaWarpTile(Quads):
    """BM must be a multiple of 64 and BN of 32."""

    rung, adds = 8, "a warp owns 64×32: fewer distinct shared-memory reads a multiply-add"
    source = "warp_tile.cu"
    tile = (128, 128, 8)
    stages = 2

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        if self.sides[0] % 64 or self.sides[1] % 32:
            raise UnsupportedError(f"{self}: block={list(self.sides)} is no multiple of a warp's 64×32")
