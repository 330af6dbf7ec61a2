"""CUDA C, shared-memory tiles: each value is read from device memory once per row or column of
tiles."""

from mfulab.kernels.base import ThreadAnElement
from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.devices import thread_block


class CudaShared(ThreadAnElement, CudaC):
    """Reduces traffic to device memory by a factor of TILE, compared with the coalesced kernel.
    `block` is (TILE, TILE)."""

    after = "cuda_coalesced"
    adds = "tiles in shared memory: a 32nd of the device-memory traffic"
    source = "shared.cu"
    is_square = True

    def defines(self) -> dict[str, str]:
        return super().defines() | {"TILE": str(thread_block(self.block)[0])}
