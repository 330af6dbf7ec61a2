"""Finds, by a matmul kernel's name, the operations that it executes beyond its counted FLOPs: whole
tiles, slower instructions."""

import functools
import re

from mfulab.flops.traced import Traced

# Rows and columns of a block's tile and, in some names, elements of k of one step.
_TILES = (
    re.compile(r"tilesize(\d+)x(\d+)(?:x(\d+))?"),  # cuBLAS's xmma kernels
    re.compile(r"nvjet_\w*?_(\d+)x(\d+)_(?:(\d+)x)?"),
    re.compile(r"_MT(\d+)x(\d+)x(\d+)"),  # hipBLASLt and rocBLAS
    # CUTLASS and cuBLAS's older names
    re.compile(r"(?<!gc)(?:gemm|fprop|wgrad|dgrad)\w*?_(\d+)x(\d+)_(?:(\d+)x)?"),
    re.compile(r"matmul_\w+_(\d+)x(\d+)x(\d+)x\d+"),  # Triton's
)
# Queries, keys and elements of a head that one block of an attention kernel takes.
_CUDNN_ATTENTION = re.compile(r"sdpa_\w*?_(\d+)x(\d+)x(\d+)_")
_FLASH = re.compile(
    r"flash_\w+_kernel_traits<(?:\(int\))?(\d+), (?:\(int\))?(\d+), (?:\(int\))?(\d+)",
    re.IGNORECASE,
)
# Taps and channels are one dimension.
_FLAT = re.compile(r"indexed|few_?channels|fixed_?channels|first_?layer")
# Instructions of older GPUs on Hopper: tensor-pipe cycles ÷ those of wgmma for as many operations.
# Read with Nsight Compute on an H200 in bf16: 8.0 and 6.0 cycles instead of 4.0.
_OLDER = (
    (2.0, re.compile(r"[shi]1688(?!\d)|tensor16x8x8(?!\d)")),
    (
        1.5,
        re.compile(
            r"[shi]16816(?!\d)|s161616|tensor16x8x16|flash_(fwd|bwd)_\w*kernel|fmha_cutlass"
        ),
    ),
)
HOPPER = (9, 0)
_TF32 = re.compile(r"tf32|s1688gemm|nvjet_")
_PRODUCT = re.compile(
    r"(?<!fb)gemm|gemv|cijk_|nvjet|xmma|cutlass|wgrad|dgrad|fprop|conv\dd|convolve|winograd|matmul|attn_fwd|attn_bwd|"
    r"flash|fmha|attention|triton_tem_|mmha|scaled_dot|_dot_kernel|moe_kernel|implicit_con|"
    r"(?<![a-z])bmm_",  # TensorRT-LLM's: bmm_E4m3_E4m3E4m3_Fp32_t128x8x256…
    re.IGNORECASE,
)


@functools.cache
def tile_of(kernel: str) -> tuple[int, int, int] | None:
    """(m, n) of the tile that one block computes, and k of one step, 1 if unknown. None if the name
    has no tile."""
    for pattern in _TILES:
        match = pattern.search(kernel)
        if match:
            return int(match[1]), int(match[2]), int(match[3] or 1)
    return None


@functools.cache
def multiplies(kernel: str) -> bool:
    """True if a kernel, by its name, computes a matmul, convolution or attention."""
    return bool(_PRODUCT.search(kernel))


# The operands' format in a kernel's name; the first pattern that matches counts. cuBLAS's nvjet has
# letters behind its architecture, as `nvjet_sm90_tst_`: o fp4, q fp8, t bf16, h fp16, s fp32, which
# its tensor cores take as tf32. tests/tracing/names.yaml holds a real name of each.
_NVJET = r"nvjet_(?:sm\d+[a-z]?_)?"
# cuBLAS's kernels for narrow matrices name the types of their operands as template arguments.
_NARROW = r"(?:gem[mv]\w*|gemvx::kernel)<[^>]*\b"
_FORMATS = (
    # Operands of two formats, as TensorRT-LLM's bmm_Bfloat16_MxE2m1MxE4m3_…: the wider one's rate.
    ("fp8", re.compile(r"E2m1(?:Mx)?E4m3|E4m3(?:Mx)?E2m1")),
    ("bf16", re.compile(r"E2m1Bfloat16|Bfloat16(?:Mx|Nv)?E2m1")),
    ("fp4", re.compile(_NVJET + r"o|e2m1|f4f4|(?:nv|mx)?fp4", re.IGNORECASE)),
    ("fp8", re.compile(_NVJET + r"q|(?i:e4m3|e5m2|fp8|float8|f8f8)|_F8|_B8")),
    (
        "int8",
        re.compile(
            r"i8816|i16832|igemm|imma|(?<!u)int8|s8s8|_I8|i8i8|i8[fi]32_i8i32|_[su]8_[su]8_s32"
        ),
    ),
    ("bf16", re.compile(_NVJET + r"t|(?i:bf16|bfloat16)|_BB[SH]_|_B_BS_|_B_?S_?S_")),
    (
        "fp16",
        re.compile(
            _NVJET + r"h|(?<![b\d])f16|(?<!b)fp16|(?i:half|(?<![a-z])hgemm)|h884|h1688|h16816"
            r"|_HH[SH]_|_H_H[SH]_|_H_?S_?S_|_HB_"
        ),
    ),
    ("tf32", re.compile(_NVJET + r"s|tf32|s1688(?:gemm|cudnn)")),
    ("fp64", re.compile(r"f64f64|dgemm|d884|_DB_|" + _NARROW + r"double\b")),
    ("fp32", re.compile(r"f32f32|sgemm|scudnn|_SS?B_|_S_B_|ffma|" + _NARROW + r"float\b")),
)


@functools.cache
def format_of(kernel: str) -> str | None:
    """Number format that a matmul kernel multiplies, by its name; None if unknown."""
    for name, pattern in _FORMATS:
        if pattern.search(kernel):
            return name
    return None


@functools.cache
def rounds_to_tf32(kernel: str) -> bool:
    """True if a kernel, by its name, multiplies float32 on tensor cores."""
    return bool(_TF32.search(kernel))


@functools.cache
def alignment_of(kernel: str) -> int:
    """Number of elements to which a kernel's operands must be aligned, by its name; 0 if the name
    does not say."""
    match = re.search(r"align[a-z]?(\d+)", kernel)
    if match:
        return int(match[1])
    return 0


def slowdown_of(kernel: str, product_format: str | None, capability: tuple[int, int]) -> float:
    """Tensor-pipe cycles of a kernel's instructions ÷ those of the GPU's newest ones, by the
    kernel's name; 1 if it names no slower ones."""
    ratio = 1.0
    if capability == HOPPER:
        ratio = next((factor for factor, pattern in _OLDER if pattern.search(kernel)), 1.0)
    # an instruction with k of 8 is the widest of tf32
    if product_format == "tf32":
        return min(ratio, 1.5)
    return ratio


def executed_ratio(kernel: str, recorded: Traced, blocks: int = 0) -> float | None:
    """Operations that a kernel executes ÷ its counted FLOPs, where attention counts in full. None
    if unknown, or if a side of a matmul is 0."""
    if recorded.attention:
        return _attention(kernel, *recorded.attention)
    tile = tile_of(kernel)
    if tile and recorded.convolution:
        return _convolution(kernel, tile, *recorded.convolution)
    if tile is None or recorded.matmul is None or 0 in recorded.matmul:
        return None
    batch, m, n, k = recorded.matmul
    return _tiled(m, n, tile, blocks, batch) * _padding(k, tile[2])


def _padding(side: int, step: int) -> float:
    """The side padded to a multiple of `step`, ÷ the side."""
    return -(-side // step) * step / side


def _tiled(m: int, n: int, tile: tuple[int, int, int], blocks: int, batch: int) -> float:
    """Work on whole tiles ÷ m × n. A row-major n lies along BLAS's first side, unless the number of
    blocks fits only the other way."""
    rows, columns, _ = tile
    straight = -(-m // rows) * -(-n // columns)
    tiles = -(-n // rows) * -(-m // columns)
    if blocks and batch * straight == blocks != batch * tiles:
        tiles = straight
    return tiles * rows * columns / (m * n)


def _convolution(
    kernel: str, tile: tuple[int, int, int], pixels: int, channels: int, filters: int, taps: int
) -> float:
    """Executed ÷ counted work of a convolution that the kernel computes as a matmul. Source:
    NVIDIA, CUTLASS, "Implicit GEMM convolution"."""
    m, n, depth = tile
    aligned = channels * _padding(channels, alignment_of(kernel) or 1)
    if "wgrad" in kernel:
        rows = _padding(filters, m)
        columns = _padding(round(aligned) * taps, n)
        return rows * columns * _padding(pixels, depth) * aligned / channels
    if "dgrad" in kernel:
        return _padding(pixels, m) * _padding(channels, n) * _padding(filters, depth)
    if _FLAT.search(kernel):
        inner = _padding(channels * taps, depth)
    else:
        inner = _padding(round(aligned), depth) * aligned / channels
    return _padding(pixels, m) * _padding(filters, n) * inner


def _attention(kernel: str, queries: int, keys: int, width: int, is_causal: bool) -> float | None:
    """Query-key pairs in whole tiles ÷ all pairs; in a causal triangle only the tiles that it
    touches. None if the name has no tile."""
    if match := _CUDNN_ATTENTION.search(kernel):
        rows, columns, step = map(int, match.groups())
    elif match := _FLASH.search(kernel):
        step, rows, columns = map(int, match.groups())
    else:
        return None
    across = -(-keys // columns)
    down = -(-queries // rows)
    tiles = across * down
    if is_causal and queries == keys:
        tiles = sum(min(across, -(-(row + 1) * rows // columns)) for row in range(down))
    return tiles * rows * columns / (queries * keys) * _padding(width, step)
