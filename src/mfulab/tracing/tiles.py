"""The tile in a kernel's name, and the cost of padding a matmul to whole tiles."""

import functools
import re
from math import prod

_TILES = (
    re.compile(r"tilesize(\d+)x(\d+)"),  # cuBLAS's xmma kernels
    re.compile(r"nvjet_\w*?_(\d+)x(\d+)_"),
    re.compile(r"_MT(\d+)x(\d+)x\d+"),  # hipBLASLt and rocBLAS
    re.compile(r"(?:gemm|fprop|wgrad|dgrad)\w*?_(\d+)x(\d+)_"),  # CUTLASS and cuBLAS's older names
    re.compile(r"matmul_\w+_(\d+)x(\d+)x\d+x\d+"),  # Triton's
)
_TF32 = re.compile(r"tf32|s1688gemm|nvjet_")
_PRODUCT = re.compile(
    r"(?<!fb)gemm|gemv|cijk_|nvjet|xmma|cutlass|wgrad|dgrad|fprop|conv\dd|convolve|winograd|matmul|attn_fwd|attn_bwd|"
    r"flash|fmha|attention|triton_tem_|mmha|scaled_dot|_dot_kernel|moe_kernel|implicit_con|"
    r"(?<![a-z])bmm_",  # TensorRT-LLM's: bmm_E4m3_E4m3E4m3_Fp32_t128x8x256…
    re.IGNORECASE,
)


@functools.cache
def tile_of(kernel: str) -> tuple[int, int] | None:
    """(m, n) of the tile that one block computes; None where the name does not tell."""
    for pattern in _TILES:
        if found := pattern.search(kernel):
            return int(found[1]), int(found[2])
    return None


@functools.cache
def multiplies(kernel: str) -> bool:
    """Recognises a matmul kernel by its name, without an operator."""
    return bool(_PRODUCT.search(kernel))


# The operands' format in the names of cuBLAS, CUTLASS, nvjet and hipBLASLt, the first that fits.
_FORMATS = {
    "tf32": re.compile(r"tf32|s1688gemm"),
    "fp8": re.compile(r"e4m3|e5m2|nvjet_qq|_F8"),
    "bf16": re.compile(r"bf16|bfloat16|nvjet_t|_BB[SH]_"),
    "fp16": re.compile(r"(?<!b)f16f16|(?<!b)f16_|h\d*gemm|half|h884|h1688|h16816|nvjet_h|_HH[SH]_"),
    "fp64": re.compile(r"f64f64|dgemm|d884|_DB_"),
    "fp32": re.compile(r"f32f32|sgemm|_SS?B_|ffma"),
}


@functools.cache
def format_of(kernel: str) -> str | None:
    """The number format that a matmul kernel multiplies, by its name; None where that does not tell."""
    return next((name for name, pattern in _FORMATS.items() if pattern.search(kernel)), None)


@functools.cache
def rounds_to_tf32(kernel: str) -> bool:
    """Recognises a kernel that multiplies float32 on tensor cores by its name."""
    return bool(_TF32.search(kernel))


def padding(m: int, n: int, tile: tuple[int, int], blocks: int = 0, batch: int = 1) -> float:
    """Work on whole tiles ÷ work on the matmul's own m × n, minus 1: the loss by tile quantisation.

    BLAS libraries count columns first, so a row-major matmul's n lies along the tile's first side; where the number
    of blocks launched fits only the other way round, that is taken.
    """
    straight, swapped = ((-(-first // tile[0]), -(-second // tile[1])) for first, second in ((m, n), (n, m)))
    tiles = straight if blocks and batch * prod(straight) == blocks != batch * prod(swapped) else swapped
    return prod(tiles) * prod(tile) / (m * n) - 1
