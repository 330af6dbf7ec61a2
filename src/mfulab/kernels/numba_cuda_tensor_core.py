"""Numba CUDA, tensor cores through inline PTX: a warp computes 64×32 of C as 4×4 products of 16×8,
in tf32.

Numba has no public function for `mma.sync.m16n8k8`, so this module defines an intrinsic. Layout of
fragments in lane 4·g + t, from the PTX ISA, "Matrix fragments for mma.m16n8k8", .tf32: A[16×8]: a0
(g, t), a1 (g+8, t), a2 (g, t+4), a3 (g+8, t+4); B[8×8]: b0 (t, g), b1 (t+4, g) as (k, column);
C[16×8]: c0 (g, 2t), c1 (g, 2t+1), c2 (g+8, 2t), c3 (g+8, 2t+1).
"""

from llvmlite import ir
from numba import cuda, float32, types, uint32

from mfulab.kernels.numba_cuda_unrolled import FOUR, LIMIT, NumbaCudaUnrolled

try:
    from numba.cuda.extending import intrinsic
except ImportError:  # numba's own simulator, if numba-cuda is not installed
    from numba.core.extending import intrinsic

TILE = uint32(128)
DEPTH = uint32(16)
THREADS = uint32(256)
LOADS = uint32(8)
ROW_A = uint32(20)
ROW_B = uint32(136)  # DEPTH + 4, TILE + 8: so that a warp's fragments lie in 32 different banks
BUFFER_A = uint32(2560)
BUFFER_B = uint32(2176)  # TILE · ROW_A, DEPTH · ROW_B
SHARED_A = 5120
SHARED_B = 4352  # two buffers for each operand
DOWN_A = uint32(16)
DOWN_B = uint32(2)  # rows between a thread's loads: THREADS / DEPTH and THREADS / TILE
EIGHT = uint32(8)
_PRODUCT = (
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
)


@intrinsic
def to_tf32(typing_context, value):
    """Rounds a float32 to the nearest tf32. The tensor core would truncate it."""

    def generate(context, builder, signature, arguments):
        real = ir.FloatType()
        word = ir.IntType(32)
        asm = ir.InlineAsm(ir.FunctionType(word, [real]), "cvt.rna.tf32.f32 $0, $1;", "=r,f")
        return builder.bitcast(builder.call(asm, arguments), real)

    return types.float32(types.float32), generate


@intrinsic
def product(typing_context, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """Multiplies and adds a warp's fragments: A·B + C. A lane passes ten float32 and receives four
    of the result."""
    result = types.UniTuple(types.float32, 4)

    def generate(context, builder, signature, arguments):
        real = ir.FloatType()
        word = ir.IntType(32)
        operands = [builder.bitcast(value, word) for value in arguments[:6]] + list(arguments[6:])
        four = ir.LiteralStructType([real] * 4)
        function = ir.FunctionType(four, [word] * 6 + [real] * 4)
        asm = ir.InlineAsm(function, _PRODUCT, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=True)
        answer = builder.call(asm, operands)
        return context.make_tuple(
            builder, signature.return_type, [builder.extract_value(answer, i) for i in range(4)]
        )

    return result(*(types.float32,) * 10), generate


@cuda.jit(device=True, inline="always")
def _fetch(coming_a, coming_b, a, b, at_a, at_b, row_a, k_a, k_b, column_b, rows, columns, inner):
    """Loads a thread's elements of the next tiles. All loads are issued before any is waited for.
    Elements outside are zeros."""
    for i in range(LOADS):
        inside_a = row_a + i * DOWN_A < rows and k_a < inner
        inside_b = k_b + i * DOWN_B < inner and column_b < columns
        coming_a[i] = a[at_a + i * DOWN_A * inner] if inside_a else float32(0)
        coming_b[i] = b[at_b + i * DOWN_B * columns] if inside_b else float32(0)


@cuda.jit(device=True, inline="always")
def _keep(tile, at, step, coming):
    """Stores the fetched elements into shared memory, `step` elements apart, rounded to tf32."""
    for i in range(LOADS):
        tile[at + i * step] = to_tf32(coming[i])


@cuda.jit(device=True, inline="always")
def _eight_deep(tile_a, tile_b, at_a, at_b, total):
    """Adds 64×8 of A times 8×32 of B to `total`, per warp."""
    part_b = cuda.local.array((4, 2), float32)
    for q in range(FOUR):
        part_b[q, 0] = tile_b[at_b + q * EIGHT]
        part_b[q, 1] = tile_b[at_b + q * EIGHT + FOUR * ROW_B]
    for p in range(FOUR):
        at = at_a + p * uint32(16) * ROW_A
        a0 = tile_a[at]
        a1 = tile_a[at + EIGHT * ROW_A]
        a2 = tile_a[at + FOUR]
        a3 = tile_a[at + EIGHT * ROW_A + FOUR]
        for q in range(FOUR):
            b0 = part_b[q, 0]
            b1 = part_b[q, 1]
            t0 = total[p, q, 0]
            t1 = total[p, q, 1]
            t2 = total[p, q, 2]
            t3 = total[p, q, 3]
            t0, t1, t2, t3 = product(a0, a1, a2, a3, b0, b1, t0, t1, t2, t3)
            total[p, q, 0], total[p, q, 1], total[p, q, 2], total[p, q, 3] = t0, t1, t2, t3


@cuda.jit(device=True, inline="always")
def _write(c, batch, rows, columns, top, left, total):
    """Writes a lane's part of its warp's 64×32 of C, masked at the edges."""
    for p in range(FOUR):
        for q in range(FOUR):
            for i in range(FOUR):
                row = top + p * uint32(16) + i // uint32(2) * EIGHT
                column = left + q * EIGHT + i % uint32(2)
                if row < rows and column < columns:
                    c[(batch * rows + row) * columns + column] = total[p, q, i]


@cuda.jit(**LIMIT)
def _matmul(a, b, c, rows, columns, inner):
    tile_a = cuda.shared.array(SHARED_A, float32)
    tile_b = cuda.shared.array(SHARED_B, float32)
    total = cuda.local.array((4, 4, 4), float32)
    coming_a = cuda.local.array(8, float32)
    coming_b = cuda.local.array(8, float32)
    thread = uint32(cuda.threadIdx.x)
    batch = uint32(cuda.blockIdx.z)
    top = uint32(cuda.blockIdx.y) * TILE
    left = uint32(cuda.blockIdx.x) * TILE
    warp = thread // uint32(32)
    group = thread % uint32(32) // FOUR
    place = thread % FOUR
    warp_top = warp // FOUR * uint32(64)
    warp_left = warp % FOUR * uint32(32)
    for p in range(FOUR):
        for q in range(FOUR):
            for i in range(FOUR):
                total[p, q, i] = float32(0)

    # This thread loads A at (row_a, k_a) and every 16 rows further down, B at (k_b, column_b) and
    # every 2 rows further down.
    row_a = top + thread // DEPTH
    k_a = thread % DEPTH
    k_b = thread // TILE
    column_b = left + thread % TILE
    to_a = thread // DEPTH * ROW_A + thread % DEPTH
    to_b = thread // TILE * ROW_B + thread % TILE
    from_a = (warp_top + group) * ROW_A + place
    from_b = place * ROW_B + warp_left + group
    at_a = (batch * rows + row_a) * inner + k_a
    at_b = (batch * inner + k_b) * columns + column_b
    _fetch(coming_a, coming_b, a, b, at_a, at_b, row_a, k_a, k_b, column_b, rows, columns, inner)
    _keep(tile_a, to_a, DOWN_A * ROW_A, coming_a)
    _keep(tile_b, to_b, DOWN_B * ROW_B, coming_b)
    cuda.syncthreads()
    here = uint32(0)
    while k_a - thread % DEPTH < inner:
        k_a = k_a + DEPTH
        k_b = k_b + DEPTH
        at_a = at_a + DEPTH
        at_b = at_b + DEPTH * columns
        _fetch(
            coming_a, coming_b, a, b, at_a, at_b, row_a, k_a, k_b, column_b, rows, columns, inner
        )
        at = here * BUFFER_A + from_a
        bt = here * BUFFER_B + from_b
        _eight_deep(tile_a, tile_b, at, bt, total)
        _eight_deep(tile_a, tile_b, at + EIGHT, bt + EIGHT * ROW_B, total)
        here = uint32(1) - here
        # Safe, because the other buffer was last read before the previous barrier.
        _keep(tile_a, here * BUFFER_A + to_a, DOWN_A * ROW_A, coming_a)
        _keep(tile_b, here * BUFFER_B + to_b, DOWN_B * ROW_B, coming_b)
        cuda.syncthreads()
    _write(
        c, batch, rows, columns, top + warp_top + group, left + warp_left + place * uint32(2), total
    )


class NumbaCudaTensorCore(NumbaCudaUnrolled):
    """float32 in and out, rounded to tf32 on the way to shared memory; accumulates in float32."""

    after = "numba_cuda_unrolled"
    adds = "tensor cores: mma.sync on tf32 by an intrinsic of inline PTX"
    precisions = ("tf32",)
    least_capability = (8, 0)
    function = _matmul
    side = int(TILE)
    threads = int(THREADS)
