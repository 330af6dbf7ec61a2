"""Numba CUDA, tensor cores by inline PTX: a warp owns 64×32 of C as 4×4 products of 16×8, in tf32.

Numba has no public call for `mma.sync.m16n8k8`: it is an intrinsic of inline PTX here. Fragments by PTX ISA, "Matrix
fragments for mma.m16n8k8", .tf32, for lane = 4·g + t:
A[16×8]: a0 (g, t), a1 (g+8, t), a2 (g, t+4), a3 (g+8, t+4); B[8×8]: b0 (t, g), b1 (t+4, g) as (k, column);
C[16×8]: c0 (g, 2t), c1 (g, 2t+1), c2 (g+8, 2t), c3 (g+8, 2t+1).
"""

from llvmlite import ir
from numba import cuda, float32, types

from mfulab.kernels.numba_cuda import NumbaCuda

try:
    from numba.cuda.extending import intrinsic
except ImportError:  # numba-cuda before 0.16
    from numba.core.extending import intrinsic

TILE, DEPTH = 128, 16
THREADS = 256
LOADS = TILE * DEPTH // THREADS
ROW_A, ROW_B = DEPTH + 4, TILE + 8  # a warp's fragments then lie in 32 different banks
SHARED_A, SHARED_B = TILE * ROW_A, DEPTH * ROW_B
_PRODUCT = (
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
)


@intrinsic
def to_tf32(typing_context, value):
    """A float32 rounded to nearest for the multiplier, which by itself would cut bits off."""

    def generate(context, builder, signature, arguments):
        real, word = ir.FloatType(), ir.IntType(32)
        asm = ir.InlineAsm(ir.FunctionType(word, [real]), "cvt.rna.tf32.f32 $0, $1;", "=r,f")
        return builder.bitcast(builder.call(asm, arguments), real)

    return types.float32(types.float32), generate


@intrinsic
def product(typing_context, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """A·B + C of a warp's fragments, ten float32 a lane; returns the lane's four of the result."""
    result = types.UniTuple(types.float32, 4)

    def generate(context, builder, signature, arguments):
        real, word = ir.FloatType(), ir.IntType(32)
        operands = [builder.bitcast(value, word) for value in arguments[:6]] + list(arguments[6:])
        four = ir.LiteralStructType([real] * 4)
        function = ir.FunctionType(four, [word] * 6 + [real] * 4)
        asm = ir.InlineAsm(function, _PRODUCT, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", side_effect=True)
        answer = builder.call(asm, operands)
        return context.make_tuple(builder, signature.return_type, [builder.extract_value(answer, i) for i in range(4)])

    return result(*(types.float32,) * 10), generate


@cuda.jit
def _matmul(a, b, c):
    tile_a = cuda.shared.array(SHARED_A, float32)
    tile_b = cuda.shared.array(SHARED_B, float32)
    total = cuda.local.array((4, 4, 4), float32)
    part_a = cuda.local.array((4, 4), float32)
    part_b = cuda.local.array((4, 2), float32)
    thread = cuda.threadIdx.x
    batch = cuda.blockIdx.z
    warp, group, place = thread // 32, thread % 32 // 4, thread % 4
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    warp_top, warp_left = warp // 4 * 64, warp % 4 * 32
    rows, inner, columns = a.shape[1], a.shape[2], b.shape[2]
    for p in range(4):
        for q in range(4):
            for i in range(4):
                total[p, q, i] = float32(0)
    for start in range(0, inner, DEPTH):
        for load in range(LOADS):
            i = thread + load * THREADS
            row, k = top + i // DEPTH, start + i % DEPTH
            value = a[batch, row, k] if row < rows and k < inner else float32(0)
            tile_a[i // DEPTH * ROW_A + i % DEPTH] = to_tf32(value)
        for load in range(LOADS):
            i = thread + load * THREADS
            k, column = start + i // TILE, left + i % TILE
            value = b[batch, k, column] if k < inner and column < columns else float32(0)
            tile_b[i // TILE * ROW_B + i % TILE] = to_tf32(value)
        cuda.syncthreads()
        for k in range(0, DEPTH, 8):
            for p in range(4):
                at = (warp_top + p * 16 + group) * ROW_A + k + place
                part_a[p, 0] = tile_a[at]
                part_a[p, 1] = tile_a[at + 8 * ROW_A]
                part_a[p, 2] = tile_a[at + 4]
                part_a[p, 3] = tile_a[at + 8 * ROW_A + 4]
            for q in range(4):
                at = (k + place) * ROW_B + warp_left + q * 8 + group
                part_b[q, 0] = tile_b[at]
                part_b[q, 1] = tile_b[at + 4 * ROW_B]
            for p in range(4):
                a0, a1, a2, a3 = part_a[p, 0], part_a[p, 1], part_a[p, 2], part_a[p, 3]
                for q in range(4):
                    b0, b1 = part_b[q, 0], part_b[q, 1]
                    t0, t1, t2, t3 = total[p, q, 0], total[p, q, 1], total[p, q, 2], total[p, q, 3]
                    t0, t1, t2, t3 = product(a0, a1, a2, a3, b0, b1, t0, t1, t2, t3)
                    total[p, q, 0], total[p, q, 1], total[p, q, 2], total[p, q, 3] = t0, t1, t2, t3
        cuda.syncthreads()
    for p in range(4):
        for q in range(4):
            for i in range(4):
                row = top + warp_top + p * 16 + group + i // 2 * 8
                column = left + warp_left + q * 8 + place * 2 + i % 2
                if row < rows and column < columns:
                    c[batch, row, column] = total[p, q, i]


class NumbaCudaTensorCore(NumbaCuda):
    """float32 in and out, rounded to tf32 on the way to shared memory; accumulates in float32."""

    after, adds = "numba_cuda_unrolled", "tensor cores: mma.sync on tf32 by an intrinsic of inline PTX"
    precisions = ("tf32",)
    least_capability = (8, 0)
    function, side, threads = _matmul, TILE, THREADS
