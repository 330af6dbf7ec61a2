"""Numba CUDA, asynchronous copies and matrix loads through inline PTX: a warp computes 64×64 of C,
in tf32.

Copies bypass the registers, in three stages (PTX ISA, "cp.async"). `ldmatrix` loads rows of 16
bytes, which is four float32. Lane l supplies the address of row l % 8 of matrix l / 8, and receives
element l % 4 of row l / 4 of each matrix. This is the layout that `mma.m16n8k8` needs for A, and
for B if its inner dimension is innermost.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda, float32, types, uint32

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Shape
from mfulab.kernels.numba_cuda import NumbaCuda
from mfulab.kernels.numba_cuda_tensor_core import intrinsic, product, to_tf32
from mfulab.kernels.numba_cuda_unrolled import ALIGNMENT, FOUR, NumbaCudaUnrolled

TILE = uint32(128)
DEPTH = uint32(16)
THREADS = uint32(128)
STAGES = uint32(3)
PACK = uint32(4)  # elements per copy, and per row of a matrix
PACKS = uint32(4)  # packs per row of a tile
STEP = uint32(8)  # steps of the inner dimension per product
EIGHT = uint32(8)
ROWS = uint32(32)  # rows that all threads copy at once: THREADS / PACKS
STAGE = uint32(2048)  # TILE · DEPTH elements
SHARED = 6144  # elements of three stages
PLACES_A = 4  # products down, of 16 rows each
PLACES_B = 4  # matrix loads across, of 16 columns each
WORD = ir.IntType(32)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Address of an element in a flat array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


def _shared(builder: Any, pointer: Any) -> Any:
    """Converts a generic address to a 32-bit address in shared memory."""
    wide = builder.ptrtoint(pointer, ir.IntType(64))
    signature = ir.FunctionType(WORD, [ir.IntType(64)])
    text = "{ .reg .u64 place; cvta.to.shared.u64 place, $1; cvt.u32.u64 $0, place; }"
    return builder.call(ir.InlineAsm(signature, text, "=r,l"), [wide])


def _copy_of(elements: int, cache: str) -> Any:
    """Code generator of an asynchronous copy of some float32. `cache` is `cg` to bypass the L1
    cache, or `ca`, which fewer than 16 bytes need."""

    def generate(context, builder, signature, arguments):
        tile, to, source, start, is_inside = arguments
        kinds = signature.args
        place = _shared(builder, _pointer(context, builder, kinds[0], tile, to))
        address = _pointer(context, builder, kinds[2], source, start)
        wide = builder.ptrtoint(address, ir.IntType(64))
        count = builder.select(is_inside, ir.Constant(WORD, 4 * elements), ir.Constant(WORD, 0))
        function = ir.FunctionType(ir.VoidType(), [WORD, ir.IntType(64), WORD])
        text = f"cp.async.{cache}.shared.global [$0], [$1], {4 * elements}, $2;"
        asm = ir.InlineAsm(function, text, "r,l,r,~{memory}", side_effect=True)
        builder.call(asm, [place, wide, count])
        return context.get_dummy_value()

    return generate


@intrinsic
def copy_pack(typing_context, tile, to, source, start, is_inside):
    """Starts to copy four elements of `source` into `tile`. Writes zeros, and reads nothing, if not
    `is_inside`."""
    return types.void(tile, types.uint32, source, types.uint32, types.boolean), _copy_of(4, "cg")


@intrinsic
def copy_element(typing_context, tile, to, source, start, is_inside):
    """Starts to copy one element, otherwise like `copy_pack`."""
    return types.void(tile, types.uint32, source, types.uint32, types.boolean), _copy_of(1, "ca")


@intrinsic
def commit_copies(typing_context):
    """Closes the current group of copies."""
    return types.void(), _instruction("cp.async.commit_group;")


@intrinsic
def wait_for_all_but_one(typing_context):
    """Waits until at most one of this thread's groups of copies is unfinished."""
    return types.void(), _instruction("cp.async.wait_group 1;")


def _instruction(text: str) -> Any:
    def generate(context, builder, signature, arguments):
        function = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(function, text, "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return generate


@intrinsic
def load_matrices(typing_context, tile, at):
    """Loads four matrices of 8×4 float32. Each lane passes the index of one row and receives four
    elements."""
    result = types.UniTuple(types.float32, 4)

    def generate(context, builder, signature, arguments):
        place = _shared(builder, _pointer(context, builder, signature.args[0], *arguments))
        function = ir.FunctionType(ir.LiteralStructType([WORD] * 4), [WORD])
        text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
        asm = ir.InlineAsm(function, text, "=r,=r,=r,=r,r,~{memory}", side_effect=True)
        words = builder.call(asm, [place])
        parts = [builder.extract_value(words, number) for number in range(4)]
        reals = [builder.bitcast(part, ir.FloatType()) for part in parts]
        return context.make_tuple(builder, signature.return_type, reals)

    return result(tile, types.uint32), generate


@cuda.jit(device=True, inline="always")
def _place(row, pack):
    """Index of a pack in its tile. Swizzled, so that eight rows that are read together use eight
    different groups of banks."""
    return row * DEPTH + (pack ^ (row >> uint32(1) & uint32(3))) * PACK


@cuda.jit(device=True, inline="always")
def _copy(tile, stage, source, first, rows, k, inner):
    """Starts a thread's copies of a tile: one pack of every 32nd row from `first` on, below
    `rows`."""
    thread = uint32(cuda.threadIdx.x)
    row = thread // PACKS
    pack = thread % PACKS
    for i in range(FOUR):
        down = row + i * ROWS
        is_inside = first + down < rows and k < inner
        start = (first + down) * inner + k if is_inside else uint32(0)
        copy_pack(tile, stage * STAGE + _place(down, pack), source, start, is_inside)


@cuda.jit(device=True, inline="always")
def _multiply(tile_a, tile_b, stage, row_a, row_b, pack_a, pack_b, total):
    """Adds 64×8 of A times 8×64 of B to `total`, per warp."""
    part_a = cuda.local.array((PLACES_A, 4), float32)
    for p in range(uint32(PLACES_A)):
        at = stage * STAGE + _place(row_a + p * uint32(16), pack_a)
        a0, a1, a2, a3 = load_matrices(tile_a, at)
        part_a[p, 0], part_a[p, 1] = to_tf32(a0), to_tf32(a1)
        part_a[p, 2], part_a[p, 3] = to_tf32(a2), to_tf32(a3)
    for q in range(uint32(PLACES_B)):
        at = stage * STAGE + _place(row_b + q * uint32(16), pack_b)
        b0, b1, b2, b3 = load_matrices(tile_b, at)
        b0, b1, b2, b3 = to_tf32(b0), to_tf32(b1), to_tf32(b2), to_tf32(b3)
        for p in range(uint32(PLACES_A)):
            a0, a1, a2, a3 = part_a[p, 0], part_a[p, 1], part_a[p, 2], part_a[p, 3]
            near = p * uint32(32) + q * uint32(8)
            t0, t1, t2, t3 = total[near], total[near + 1], total[near + 2], total[near + 3]
            t0, t1, t2, t3 = product(a0, a1, a2, a3, b0, b1, t0, t1, t2, t3)
            total[near], total[near + 1], total[near + 2], total[near + 3] = t0, t1, t2, t3
            t0, t1, t2, t3 = total[near + 4], total[near + 5], total[near + 6], total[near + 7]
            t0, t1, t2, t3 = product(a0, a1, a2, a3, b2, b3, t0, t1, t2, t3)
            total[near + 4], total[near + 5], total[near + 6], total[near + 7] = t0, t1, t2, t3


@cuda.jit(device=True, inline="always")
def _write_place(c, batch, rows, columns, top, left, total, first):
    """Writes a lane's part of 16×64 of C, masked at the edges. Its sums start at index `first` of
    `total`."""
    for q in range(EIGHT):
        for i in range(FOUR):
            row = top + i // uint32(2) * EIGHT
            column = left + q * EIGHT + i % uint32(2)
            if row < rows and column < columns:
                c[(batch * rows + row) * columns + column] = total[first + q * FOUR + i]


@cuda.jit(device=True, inline="always")
def _write(c, batch, rows, columns, top, left, total):
    """Writes a lane's part of its warp's 64×64. Unrolled by hand, because a loop that the compiler
    does not unroll keeps all sums in memory."""
    _write_place(c, batch, rows, columns, top, left, total, uint32(0))
    _write_place(c, batch, rows, columns, top + uint32(16), left, total, uint32(32))
    _write_place(c, batch, rows, columns, top + uint32(32), left, total, uint32(64))
    _write_place(c, batch, rows, columns, top + uint32(48), left, total, uint32(96))


@cuda.jit
def _matmul(a, b, c, rows, columns, inner):
    tile_a = cuda.shared.array(SHARED, float32, alignment=ALIGNMENT)
    tile_b = cuda.shared.array(SHARED, float32, alignment=ALIGNMENT)
    total = cuda.local.array(128, float32)
    for i in range(uint32(128)):
        total[i] = float32(0)
    thread = uint32(cuda.threadIdx.x)
    batch = uint32(cuda.blockIdx.z)
    top = uint32(cuda.blockIdx.y) * TILE
    left = uint32(cuda.blockIdx.x) * TILE
    warp = thread // uint32(32)
    lane = thread % uint32(32)
    warp_top = warp // uint32(2) * uint32(64)
    warp_left = warp % uint32(2) * uint32(64)
    # Four matrices of A: two times eight rows of one pack, then of the next pack. Of B: two packs of
    # eight columns, then of the next eight columns.
    row_a = warp_top + lane % uint32(16)
    pack_a = lane // uint32(16)
    row_b = warp_left + lane % EIGHT + lane // uint32(16) * EIGHT
    pack_b = lane // EIGHT % uint32(2)
    first_a = batch * rows + top
    last_a = batch * rows + rows
    first_b = batch * columns + left
    last_b = batch * columns + columns
    k = thread % PACKS * PACK
    for stage in range(STAGES - uint32(1)):
        _copy(tile_a, stage, a, first_a, last_a, k, inner)
        _copy(tile_b, stage, b, first_b, last_b, k, inner)
        commit_copies()
        k = k + DEPTH
    here = uint32(0)
    coming = STAGES - uint32(1)
    done = uint32(0)
    while done < inner:
        wait_for_all_but_one()
        cuda.syncthreads()
        # Safe, because the stage that is filled now was last read before this barrier.
        _copy(tile_a, coming, a, first_a, last_a, k, inner)
        _copy(tile_b, coming, b, first_b, last_b, k, inner)
        commit_copies()
        _multiply(tile_a, tile_b, here, row_a, row_b, pack_a, pack_b, total)
        _multiply(tile_a, tile_b, here, row_a, row_b, pack_a + uint32(2), pack_b + uint32(2), total)
        k = k + DEPTH
        done = done + DEPTH
        coming = here
        here = here + uint32(1) if here + uint32(1) < STAGES else uint32(0)
    group = lane // FOUR
    place = lane % FOUR
    _write(
        c, batch, rows, columns, top + warp_top + group, left + warp_left + place * uint32(2), total
    )


class NumbaCudaAsync(NumbaCudaUnrolled):
    """float32 in and out, rounded to tf32 before the multiplication. B is transposed beforehand,
    which counts only in the end-to-end time."""

    after = "numba_cuda_tensor_core"
    adds = "cp.async and ldmatrix by intrinsics of inline PTX: three stages, 64×64 of C a warp"
    precisions = ("tf32",)
    least_capability = (8, 0)
    function = _matmul
    side = int(TILE)
    threads = int(THREADS)

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.k % int(PACK):
            raise UnsupportedError(
                Said(
                    "rows_of_16_bytes",
                    kernel=str(self),
                    shape=str(shape),
                    precision=self.precision,
                )
            )

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        along_k = b.transpose(1, 2).contiguous()
        sides = tuple(np.uint32(side) for side in (a.shape[1], b.shape[2], a.shape[2]))
        arrays = NumbaCuda.prepare(self, a.view(-1), along_k.view(-1), c.view(-1))
        return *arrays, *sides
