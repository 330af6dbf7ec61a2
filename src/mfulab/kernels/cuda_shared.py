"""CUDA C, shared-memory tiles: each value is read from device memory once for a row or column of the tile."""

from collections.abc import Sequence

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.devices import thread_block


class CudaShared(CudaC):
    """A TILE-th of the device-memory traffic of the rung below. `block` is (TILE, TILE)."""

    after, adds = "cuda_coalesced", "tiles in shared memory: a 32nd of the device-memory traffic"
    source = "shared.cu"
    block_sides = 2

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        if self.block and self.block[0] != self.block[1]:
            raise UnsupportedError(f"{self}: block={list(self.block)} must be square")

    def defines(self) -> dict[str, str]:
        return super().defines() | {"TILE": str(thread_block(self.block)[0])}

    def launch(self, shape: Shape) -> Launch:
        tile, _ = thread_block(self.block)
        return Launch((tile, tile), (ceil_div(shape.n, tile), ceil_div(shape.m, tile), shape.batch))
