"""Base of the tiled CUDA C rungs: a block of threads computes BM×BN of C, BK of the inner dimension at a time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Launch, Shape
from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.devices import require_block


class Tiled(CudaC):
    """`block` is (BM, BN, BK)."""

    block_sides = 3
    run_m: ClassVar[int] = 8  # elements of C that a thread computes down …
    run_n: ClassVar[int] = 8  # … and across
    group_rows: ClassVar[int] = 1  # rows of tiles that are walked together
    load: ClassVar[int] = 1  # neighbouring elements that a thread loads at once
    stages: ClassVar[int] = 1  # pairs of tiles in shared memory
    pad: ClassVar[int] = 0  # elements behind each row of A's tile, which is stored transposed

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        tile_m, tile_n, tile_k = self.sides
        name = f"{self}: block={[tile_m, tile_n, tile_k]}"
        if tile_m % self.run_m or tile_n % self.run_n:
            raise UnsupportedError(f"{name} is no multiple of the {self.run_m}×{self.run_n} that a thread computes")
        if tile_k % self.load or tile_n % self.load:
            raise UnsupportedError(f"{name}: rows of its tiles are no multiple of the {self.load} elements of a load")
        loads = (tile_m * tile_k // self.load, tile_k * tile_n // self.load)
        elements = self.stages * (tile_m + self.pad + tile_n) * tile_k
        require_block(name, self.threads, loads, elements * (8 if precision == "fp64" else 4))

    @property
    def threads(self) -> int:
        return self.sides[0] // self.run_m * (self.sides[1] // self.run_n)

    def defines(self) -> dict[str, str]:
        values = (*self.sides, self.run_m, self.group_rows)
        return super().defines() | dict(zip(("BM", "BN", "BK", "RUN", "GROUP"), map(str, values), strict=True))

    def launch(self, shape: Shape) -> Launch:
        tile_m, tile_n, _ = self.sides
        return Launch((self.threads,), shape.grid(tile_m, tile_n))


class Quads(Tiled):
    """Tiles moved four float32 at a time."""

    precisions = ("fp32",)
    load = 4
    pad = 4

    def launch(self, shape: Shape) -> Launch:
        aligned = shape.n % 4 == 0 and shape.k % 4 == 0
        return replace(super().launch(shape), defines=(("ALIGNED", str(int(aligned))),))


class WarpTiles(Quads):
    """A warp owns 64×32 of C: BM must be a multiple of 64 and BN of 32."""

    tile = (128, 128, 8)
    stages = 2

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        if self.sides[0] % 64 or self.sides[1] % 32:
            raise UnsupportedError(f"{self}: block={list(self.sides)} is no multiple of a warp's 64×32")


class AsyncTiles(WarpTiles):
    """Tiles that are copied to shared memory asynchronously, three pairs deep."""

    stages = 3
    least_capability = (8, 0)
