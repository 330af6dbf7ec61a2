"""cuTile Python (`cuda-tile`): one program per tile. The compiler chooses threads, shared memory
and copies."""

import functools
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, MatmulKernel, Shape

# Formats whose sums need more registers: the largest tiles that cuTile 1.7 compiles for Hopper
# without spills.
UNSPILLED = {"fp32": (64, 64, 16), "fp8": (64, 128, 128)}


class CuTile(MatmulKernel):
    """`block` is (tile_m, tile_n, tile_k), powers of two. Elements outside the matrices are read as
    zeros."""

    family = "tile language"
    after = ""
    adds = "cuTile: NVIDIA's own tiles; the compiler chooses threads, shared memory and bulk copies"
    devices = ("cuda",)
    precisions = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")
    least_capability = (8, 0)
    block_sides = 3

    @property
    def sides(self) -> tuple[int, ...]:
        # A row of an operand's tile takes 128 bytes, the widest swizzle of Hopper's copy engine.
        default = (128, 128, 128 // FORMATS[self.precision].bytes)
        return self.block or UNSPILLED.get(self.precision, default)

    def launch(self, shape: Shape) -> Launch:
        tile_m, tile_n, _ = self.sides
        return Launch(self.sides, shape.grid(tile_m, tile_n))

    def run(self, *operands: Any, launch: Launch) -> None:
        import cuda.tile as ct

        try:
            ct.launch(
                torch.cuda.current_stream(),
                launch.grid,
                kernel(self.precision),
                (*operands, *self.sides),
            )
        except FileNotFoundError as missing:  # the compiler is a separate package
            raise UnsupportedError(
                Said("kernel_missing", kernel=str(self), error=str(missing))
            ) from None


@functools.cache
def kernel(precision: str) -> Any:
    """Compiled kernel for C[batch,m,n] = A[batch,m,k] · B[batch,k,n] in a precision. Raises
    ModuleNotFoundError without cuda-tile."""
    import cuda.tile as ct

    sum_type = ct.int32 if precision == "int8" else ct.float32
    multiplied = ct.tfloat32 if precision == "tf32" else None
    zero = ct.PaddingMode.ZERO

    @ct.kernel
    def matmul(
        a, b, c, tile_m: ct.Constant[int], tile_n: ct.Constant[int], tile_k: ct.Constant[int]
    ):
        column = ct.bid(0)
        row = ct.bid(1)
        matrix = ct.bid(2)
        total = ct.full((tile_m, tile_n), 0, dtype=sum_type)
        for step in range(ct.num_tiles(a, axis=2, shape=(1, tile_m, tile_k))):
            # In two dimensions, because 3-D matmuls are not compiled to Hopper's wgmma.
            part_a = ct.load(
                a, index=(matrix, row, step), shape=(1, tile_m, tile_k), padding_mode=zero
            )
            part_b = ct.load(
                b, index=(matrix, step, column), shape=(1, tile_k, tile_n), padding_mode=zero
            )
            part_a = ct.reshape(part_a, (tile_m, tile_k))
            part_b = ct.reshape(part_b, (tile_k, tile_n))
            if multiplied is not None:
                part_a = ct.astype(part_a, multiplied)
                part_b = ct.astype(part_b, multiplied)
            total = ct.mma(part_a, part_b, total)
        tile = ct.reshape(ct.astype(total, c.dtype), (1, tile_m, tile_n))
        ct.store(c, index=(matrix, row, column), tile=tile)

    return matmul
