"""A warp's tensor-core matmul for Numba: `mma.sync.m16n8k8` on tf32 as an intrinsic of inline PTX.

Numba has no public call for it. Fragments by PTX ISA, "Matrix fragments for mma.m16n8k8", .tf32, for lane = 4·g + t:
A[16×8]: a0 (g, t), a1 (g+8, t), a2 (g, t+4), a3 (g+8, t+4); B[8×8]: b0 (t, g), b1 (t+4, g) as (k, column);
C[16×8]: c0 (g, 2t), c1 (g, 2t+1), c2 (g+8, 2t), c3 (g+8, 2t+1).
"""

from llvmlite import ir
from numba import types

try:
    from numba.cuda.extending import intrinsic
except ImportError:  # numba-cuda before 0.16
    from numba.core.extending import intrinsic

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
