"""Base of the tiled CUDA C kernels: a block of threads computes BM×BN of C, in steps of BK along
the inner dimension."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, Shape
from mfulab.kernels.cuda_c import CudaC
from mfulab.kernels.devices import DYNAMIC_SHARED_BYTES, STATIC_SHARED_BYTES, require_block


class Tiled(CudaC):
    """Tiled kernel; `block` is (BM, BN, BK)."""

    block_sides = 3
    run_m: ClassVar[int] = 8  # rows of C that a thread computes …
    run_n: ClassVar[int] = 8  # … and columns
    group_rows: ClassVar[int] = 1  # rows of tiles that are processed together
    load: ClassVar[int] = 1  # adjacent elements that a thread loads at once
    stages: ClassVar[int] = 1  # pairs of tiles in shared memory
    pad: ClassVar[int] = 0  # padding of each row of A's tile, which is stored transposed
    # rows and columns of C per warp; empty: warps are consecutive threads of the block
    warp: ClassVar[tuple[int, ...]] = ()
    most_shared_bytes: ClassVar[int] = STATIC_SHARED_BYTES

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        tile_m, tile_n, tile_k = self.sides
        name = f"{self}: block={[tile_m, tile_n, tile_k]}"
        if tile_m % self.run_m or tile_n % self.run_n:
            raise UnsupportedError(
                Said("no_multiple_of_thread", name=name, m=str(self.run_m), n=str(self.run_n))
            )
        if tile_k % self.load or tile_n % self.load:
            raise UnsupportedError(Said("no_multiple_of_load", name=name, load=str(self.load)))
        if self.warp:
            warp_m, warp_n = self.warp
            if tile_m % warp_m or tile_n % warp_n:
                raise UnsupportedError(
                    Said("no_multiple_of_warp", name=name, m=str(warp_m), n=str(warp_n))
                )
        loads = (tile_m * tile_k // self.load, tile_k * tile_n // self.load)
        require_block(name, self.threads, loads, self.tiles_bytes, self.most_shared_bytes)

    @property
    def tiles_bytes(self) -> int:
        """Shared memory of all stages of tiles in bytes."""
        tile_m, tile_n, tile_k = self.sides
        element_bytes = 8 if self.precision == "fp64" else 4
        return self.stages * (tile_m + self.pad + tile_n) * tile_k * element_bytes

    @property
    def threads(self) -> int:
        tile_m, tile_n, _ = self.sides
        return tile_m // self.run_m * (tile_n // self.run_n)

    def defines(self) -> dict[str, str]:
        tile_m, tile_n, tile_k = self.sides
        part_m, part_n = self.warp or (tile_m, tile_n)
        return super().defines() | {
            "BM": str(tile_m),
            "BN": str(tile_n),
            "BK": str(tile_k),
            "RUN": str(self.run_m),
            "RUN_N": str(self.run_n),
            "GROUP": str(self.group_rows),
            "PART_M": str(part_m),
            "PART_N": str(part_n),
        }

    def launch(self, shape: Shape) -> Launch:
        tile_m, tile_n, _ = self.sides
        return Launch((self.threads,), shape.grid(tile_m, tile_n))


class Quads(Tiled):
    """Tiled kernel that moves four float32 at a time."""

    precisions = ("fp32",)
    load = 4
    pad = 4

    def launch(self, shape: Shape) -> Launch:
        aligned = shape.n % 4 == 0 and shape.k % 4 == 0
        defines = (("ALIGNED", str(int(aligned))),)
        return replace(super().launch(shape), defines=defines)


class AsyncTiles(Quads):
    """Tiled kernel with asynchronous copies to shared memory, in three stages."""

    tile = (128, 128, 8)
    warp = (64, 32)
    stages = 3
    least_capability = (8, 0)
    most_shared_bytes = DYNAMIC_SHARED_BYTES

    def launch(self, shape: Shape) -> Launch:
        asked = self.tiles_bytes if self.tiles_bytes > STATIC_SHARED_BYTES else 0
        return replace(super().launch(shape), shared_memory_bytes=asked)
