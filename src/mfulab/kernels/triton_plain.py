"""Triton, plain: one program per tile, with a fixed tile size."""

from typing import Any

from mfulab.kernels.base import Launch
from mfulab.kernels.triton_kernels import TritonKernel, matmul_tiles


class TritonPlain(TritonKernel):
    """Kernel of Triton's tutorial: tiles in grouped order, masked at the edges."""

    after = ""
    adds = "tiles instead of threads: the compiler places shared memory and tensor cores"

    def run(self, *operands: Any, launch: Launch) -> None:
        options = self.constants() | self.tiling() | self.OPTIONS
        self._compiled = matmul_tiles[launch.grid](*self.arguments(*operands), **options)
