"""Helion: a matmul as torch operations on tiles, from which a Triton kernel is made."""

import functools
from typing import Any

from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Launch, MatmulKernel, Shape, ceil_div

# Tile (m, n, k), warps, stages by the bytes of an operand's element; Helion's own search for them takes minutes.
CONFIGS = {4: ((128, 128, 32), 8, 3), 2: ((128, 256, 64), 8, 3)}


class Helion(MatmulKernel):
    """`block` is (tile_m, tile_n, tile_k). In Triton's interpreter (TRITON_INTERPRET=1) it runs on CPU tensors."""

    family, after = "tile language", "cutile"
    adds = "Helion: torch operations on tiles; indices, masks and the Triton kernel are made from them"
    devices = ("cuda",)
    precisions = ("fp32", "tf32", "fp16", "bf16")
    least_capability = (8, 0)
    block_sides = 3

    @property
    def sides(self) -> tuple[int, ...]:
        return self.block or CONFIGS[FORMATS[self.precision].bytes][0]

    def launch(self, shape: Shape) -> Launch:
        tile_m, tile_n, _ = self.sides
        return Launch(self.sides, (shape.batch * ceil_div(shape.m, tile_m) * ceil_div(shape.n, tile_n),))

    def run(self, *operands: Any, launch: Launch) -> None:
        _, warps, stages = CONFIGS[FORMATS[self.precision].bytes]
        kernel(self.sides, warps, stages, "tf32" if self.precision == "tf32" else "ieee")(*operands)


@functools.cache
def kernel(sides: tuple[int, ...], warps: int, stages: int, rounding: str) -> Any:
    """C[batch,m,n] = A[batch,m,k] · B[batch,k,n] with fixed tiles; raises ModuleNotFoundError without helion."""
    import helion

    from mfulab.kernels.helion_source import matmul

    config = helion.Config(block_sizes=[1, *sides], num_warps=warps, num_stages=stages)
    return helion.kernel(matmul, config=config, static_shapes=True, dot_precision=rounding)
