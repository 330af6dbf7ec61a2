"""Triton kernels, one with a program per tile and a persistent one, and the base class of the
Triton implementations."""

from typing import Any, ClassVar

import triton
import triton.language as tl

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, MatmulKernel, Resources, Shape, ceil_div
from mfulab.kernels.devices import (
    AMPERE,
    HOPPER,
    amd_architecture,
    generation,
    require_capability,
)

# rows of tiles that are processed together, so that their operands stay in the L2 cache
GROUP = 8


@triton.jit
def place_of(tile, rows, columns, group_rows: tl.constexpr):
    """(row, column) of a tile in grouped order: within a group of rows, column by column."""
    first = tile // (group_rows * columns) * group_rows
    height = tl.minimum(rows - first, group_rows)
    within = tile % (group_rows * columns)
    return first + within % height, within // height


@triton.jit
def store_tile(c, total, batch, row, column, m, n, tile_m: tl.constexpr, tile_n: tl.constexpr):
    """Writes a tile of sums into C in its element type, masked at the edges. Offsets are 64-bit."""
    rows = row * tile_m + tl.arange(0, tile_m)
    columns = column * tile_n + tl.arange(0, tile_n)
    to = c + batch.to(tl.int64) * m * n + rows[:, None].to(tl.int64) * n + columns[None, :]
    tl.store(to, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def matmul_tiles(
    a, b, c, batch, m, n, k,
    tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
    group_rows: tl.constexpr, sum_type: tl.constexpr, rounding: tl.constexpr, b_along_k: tl.constexpr,
):  # fmt: skip
    """Computes one tile per program, through pointers. Supports any shape."""
    row, column = place_of(tl.program_id(0), tl.cdiv(m, tile_m), tl.cdiv(n, tile_n), group_rows)
    matrix = tl.program_id(1)
    rows = row * tile_m + tl.arange(0, tile_m)
    columns = column * tile_n + tl.arange(0, tile_n)
    depth = tl.arange(0, tile_k)
    from_a = a + matrix.to(tl.int64) * m * k + rows[:, None].to(tl.int64) * k + depth[None, :]
    from_b = b + matrix.to(tl.int64) * k * n
    if b_along_k:
        from_b += depth[:, None] + columns[None, :].to(tl.int64) * k
    else:
        from_b += depth[:, None].to(tl.int64) * n + columns[None, :]
    total = tl.zeros((tile_m, tile_n), dtype=sum_type)
    for start in range(0, k, tile_k):
        inside = depth < k - start
        part_a = tl.load(from_a, mask=(rows[:, None] < m) & inside[None, :], other=0.0)
        part_b = tl.load(from_b, mask=inside[:, None] & (columns[None, :] < n), other=0.0)
        total = tl.dot(part_a, part_b, total, input_precision=rounding, out_dtype=sum_type)
        from_a += tile_k
        from_b += tile_k if b_along_k else tile_k * n
    store_tile(c, total, matrix, row, column, m, n, tile_m, tile_n)


@triton.jit
def matmul_persistent(
    a, b, c, batch, m, n, k,
    tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
    group_rows: tl.constexpr, sum_type: tl.constexpr, rounding: tl.constexpr, b_along_k: tl.constexpr,
):  # fmt: skip
    """Computes all tiles with a fixed number of programs. a[batch·m,k] and b[batch·k,n] (or
    b[batch·n,k]) are tensor descriptors."""
    rows = tl.cdiv(m, tile_m)
    columns = tl.cdiv(n, tile_n)
    for tile in range(tl.program_id(0), batch * rows * columns, tl.num_programs(0)):
        matrix = tile // (rows * columns)
        row, column = place_of(tile % (rows * columns), rows, columns, group_rows)
        total = tl.zeros((tile_m, tile_n), dtype=sum_type)
        for start in range(0, k, tile_k):
            part_a = a.load([matrix * m + row * tile_m, start])
            if b_along_k:
                part_b = b.load([matrix * n + column * tile_n, start]).T
            else:
                part_b = b.load([matrix * k + start, column * tile_n])
            total = tl.dot(part_a, part_b, total, input_precision=rounding, out_dtype=sum_type)
        store_tile(c, total, matrix, row, column, m, n, tile_m, tile_n)


WARPS = 8
STAGES = 3
ROW_BYTES = 128  # bytes per row of A's tile
SINCE = dict.fromkeys(("bf16", "tf32", "int8"), AMPERE)  # not supported by Triton on older GPUs
INSTINCT = "gfx9"  # start of the architectures of GCN and CDNA
TF32_OF_AMD = "gfx942"  # the only AMD GPU that Triton multiplies tf32 on


def tile_for(
    precision: str, capability: tuple[int, int], architecture: str | None = None
) -> tuple[int, int, int]:
    """Default (tile_m, tile_n, tile_k), chosen not to spill on any GPU; `architecture` is that of
    an AMD GPU. 256 columns need fewer reads of shared memory; all stages then take 144 of Hopper's
    227 KiB. On other GPUs, wide 8-bit and tf32 tiles would spill. On Turing, Triton does not use
    tensor cores for fp16, and the tile is a quarter. So it is on Radeon, whose warps have half the
    threads of Instinct's."""
    item = FORMATS[precision].bytes
    if architecture is not None and not architecture.startswith(INSTINCT):
        return 64, 64, ROW_BYTES // item
    if item == 2 and (0, 0) < capability < AMPERE:
        return 64, 64, 32
    is_wide = precision != "fp32" and capability >= AMPERE and (item == 2 or capability == HOPPER)
    return 128, 256 if is_wide else 128, ROW_BYTES // item


class TritonKernel(MatmulKernel):
    """Base of the Triton kernels. `block` is (tile_m, tile_n, tile_k), powers of 2. With
    TRITON_INTERPRET=1 they run on CPU tensors. wgmma takes 8-bit and tf32 operands only along k: B
    is transposed beforehand, which counts only in the end-to-end time."""

    accumulates_fast = True  # Triton's default for fp8 on Hopper
    family = "Triton"
    devices = ("cuda",)
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")
    block_sides = 3
    # Fused multiply-adds, as in all other implementations; not the default from Triton 3.10 on.
    OPTIONS: ClassVar[dict[str, Any]] = {"enable_fp_fusion": True}

    def __init__(self, precision: str, block: Any = None):
        super().__init__(precision, block)
        self._compiled: Any = None

    @property
    def sides(self) -> tuple[int, ...]:
        return self.block or tile_for(self.precision, generation(), amd_architecture())

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        least = SINCE.get(self.precision, (0, 0))
        if (0, 0) < generation() < least:
            require_capability(f"{self} in {self.precision}", least)
        architecture = amd_architecture()
        if self.precision == "tf32" and architecture not in (None, TF32_OF_AMD):
            raise UnsupportedError(
                Said(
                    "triton_tf32_on_amd",
                    kernel=str(self),
                    only=TF32_OF_AMD,
                    has=architecture or "?",
                )
            )

    def launch(self, shape: Shape) -> Launch:
        tile_m, tile_n, _ = self.sides
        return Launch(
            self.sides, (ceil_div(shape.m, tile_m) * ceil_div(shape.n, tile_n), shape.batch)
        )

    def constants(self) -> dict[str, Any]:
        """Compile-time parameters that depend on the precision."""
        summed = tl.int32 if self.precision == "int8" else tl.float32
        rounding = "tf32" if self.precision == "tf32" else "ieee"
        return {
            "group_rows": GROUP,
            "sum_type": summed,
            "rounding": rounding,
            "b_along_k": self.b_along_k,
        }

    def tiling(self) -> dict[str, Any]:
        """Compile-time sides of the tile, and the numbers of warps and pipeline stages."""
        sides = dict(zip(("tile_m", "tile_n", "tile_k"), self.sides, strict=True))
        return {**sides, "num_warps": WARPS, "num_stages": STAGES}

    @property
    def b_along_k(self) -> bool:
        """True if B is passed with its inner dimension innermost."""
        return self.precision in ("tf32", "fp8", "int8")

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return a, b.transpose(1, 2).contiguous() if self.b_along_k else b, c

    def arguments(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return a, b, c, a.shape[0], a.shape[1], c.shape[2], a.shape[2]

    def resources(self) -> Resources:
        compiled = self._compiled
        if compiled is None or not hasattr(compiled, "n_regs"):
            return Resources()
        # Triton counts spills in words.
        threads = 32 * compiled.metadata.num_warps
        return Resources(compiled.n_regs, compiled.metadata.shared, 4 * compiled.n_spills, threads)
