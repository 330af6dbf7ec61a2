import itertools
import re
import sys
from types import ModuleType

import pytest
from support.compiled import ALIGNED, ODD
from support.ladders import LADDER
from support.machine_code import disassembled, main_loops, needs_nvrtc
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Resources, Shape
from mfulab.kernels.cuda_async_copies import CudaAsyncCopies
from mfulab.kernels.cuda_double_buffered import CudaDoubleBuffered
from mfulab.kernels.cuda_elementwise import CudaElementwise
from mfulab.kernels.cuda_grouped import CudaGrouped
from mfulab.kernels.cuda_register_1d import CudaRegister1D
from mfulab.kernels.cuda_register_2d import CudaRegister2D
from mfulab.kernels.cuda_vectorised import CudaVectorised
from mfulab.kernels.cuda_warp_tile import CudaWarpTile
from mfulab.kernels.cuda_wide import CudaWide
from mfulab.kernels.cuda_wmma import CudaWmma
from mfulab.kernels.nvrtc import compile_source, parse_resources

MULTIPLY = {
    "fp32": "FFMA",
    "fp64": "DFMA",
    "tf32": r"HMMA\.\d+\.F32\.TF32",
    "fp16": r"HMMA\.16816",
    "bf16": r"HMMA\.16816",
    "int8": r"IMMA\.16816\.S8\.S8",
}


def compiled(kernel, arch, shape):
    needs_nvrtc()
    try:
        return kernel.compile(arch, shape)
    except UnsupportedError as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "arch"), itertools.product([ALIGNED, ODD], ["sm_80", "sm_90a"]), ids=str
)
@pytest.mark.parametrize(
    ("kind", "precision"), [(kind, precision) for kind in LADDER for precision in kind.precisions]
)
def test_no_spills_and_the_expected_multiplication(kind, precision, arch, shape):
    code = compiled(kind(precision), arch, shape)
    assert code.resources.spill_bytes == 0
    assert 16 <= code.resources.registers <= 255
    text = disassembled(code.code)
    assert "STL" not in text
    assert re.search(MULTIPLY[precision], text)
    others = {"FFMA", "DFMA"} - {MULTIPLY[precision]}
    assert not any(re.search(rf"\b{other}\b", text) for other in others)
    main = main_loops(text, MULTIPLY[precision])
    assert main
    # A generic access (LD, ST without a space named) asks each time which memory an address means.
    assert not [opcode for body in main for opcode in body if re.match(r"(LD|ST)(\.|$)", opcode)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "multiply"), [("fp16", r"HMMA\.1688\.F32"), ("int8", r"IMMA\.8816\.S8\.S8")]
)
@pytest.mark.parametrize("shape", [ALIGNED, ODD], ids=str)
def test_turing_multiplies_in_its_tensor_cores(precision, multiply, shape):
    code = compiled(CudaWmma(precision), "sm_75", shape)
    assert code.resources.spill_bytes == 0
    assert main_loops(disassembled(code.code), multiply)


def test_an_architecture_that_the_compiler_has_dropped_is_unsupported():
    needs_nvrtc()
    with refused(UnsupportedError, "nvrtc_no_code", arch="sm_50"):
        CudaWmma("fp16").compile("sm_50", ALIGNED)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_fragments_are_loaded_as_matrices(precision):
    text = disassembled(compiled(CudaWmma(precision), "sm_90a", ALIGNED).code)
    (main,) = main_loops(text, MULTIPLY[precision])
    assert sum(opcode.startswith("LDSM") for opcode in main) == 12
    assert "PRMT" not in main


@pytest.mark.slow
def test_operands_are_rounded_to_tf32_once_and_not_at_each_use():
    (main,) = main_loops(
        disassembled(compiled(CudaWmma("tf32"), "sm_90a", ALIGNED).code), MULTIPLY["tf32"]
    )
    loaded = 4 * sum(opcode == "LDG.E.128" for opcode in main)
    assert sum(opcode.startswith(("FSETP", "F2FP", "F2F")) for opcode in main) == loaded


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CudaVectorised, CudaDoubleBuffered, CudaWarpTile, CudaWmma])
def test_aligned_rows_are_loaded_128_bits_at_a_time(kind):
    text = disassembled(compiled(kind(kind.precisions[0]), "sm_90a", ALIGNED).code)
    assert "LDG.E.128" in text
    assert not re.search(r"LDG\.E(\.U16)?(\.CONSTANT)? ", text)
    odd = disassembled(compiled(kind(kind.precisions[0]), "sm_90a", ODD).code)
    assert "LDG.E.128" not in odd


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CudaAsyncCopies, CudaGrouped, CudaWide])
def test_tiles_pass_the_registers_by(kind):
    text = disassembled(compiled(kind("fp32"), "sm_90a", ALIGNED).code)
    (main,) = main_loops(text, "FFMA")
    rows, columns, depth = kind.tile
    assert (
        sum(opcode.startswith("LDGSTS") for opcode in main) == (rows + columns // 4) * depth // 256
    )
    assert (
        sum(opcode.startswith("LDGSTS") and opcode.endswith("128") for opcode in main)
        == columns // 4 * depth // 256
    )
    assert not [opcode for opcode in main if opcode.startswith(("LDG.", "STS"))]
    assert sum(opcode.startswith("BAR") for opcode in main) == 1
    assert main.count("FFMA") > 0.84 * len(main)


def test_a_column_of_eight_elements_takes_few_registers():
    """Unrolled less: 126 registers a thread left one block in two of an SM empty."""
    resources = compiled(CudaRegister1D("fp32"), "sm_90a", ALIGNED).resources
    assert resources.registers <= 64


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [CudaVectorised, CudaDoubleBuffered, CudaWarpTile, CudaAsyncCopies, CudaGrouped]
)
def test_two_blocks_fit_an_sm(kind):
    resources = compiled(kind("fp32"), "sm_90a", ALIGNED).resources
    assert resources.registers <= 65536 // (2 * kind("fp32").threads)


@pytest.mark.slow
def test_a_wide_lane_reads_less_and_waits_half_as_often_a_multiply_add():
    """128 multiply-adds for six 128-bit reads where 64 need four; a barrier for 16 steps where it
    stood for 8."""
    loops = {}
    for kind in (CudaGrouped, CudaWide):
        code = compiled(kind("fp32"), "sm_90a", ALIGNED)
        (main,) = main_loops(disassembled(code.code), "FFMA")
        loops[kind] = [
            sum(opcode.startswith(name) for opcode in main) for name in ("FFMA", "LDS.128", "BAR")
        ]
    assert loops == {CudaGrouped: [512, 32, 1], CudaWide: [2048, 96, 1]}
    assert main.count("FFMA") > 0.91 * len(main)
    assert code.resources.registers <= 255
    launch = CudaWide("fp32").launch(ALIGNED)
    assert (launch.shared_memory_bytes, launch.block) == (3 * 16 * (128 + 4 + 256) * 4, (256,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "block"),
    [(CudaRegister2D, (256, 128, 8)), (CudaVectorised, (256, 128, 16)), (CudaWmma, (64, 256))],
)
def test_a_larger_block_spills_nothing_either(kind, block):
    assert compiled(kind(kind.precisions[0], block), "sm_90a", ALIGNED).resources.spill_bytes == 0


def test_resources_are_read_from_the_compiler_s_log():
    log = """ptxas info    : Function properties for matmul
        8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
    ptxas info    : Used 128 registers, used 1 barriers, 8 bytes cumulative stack size, 16640 bytes smem"""
    assert parse_resources(log) == Resources(128, 16640, 28)
    assert parse_resources("") == Resources()
    assert (
        parse_resources("ptxas info : Used 8 registers, used 0 barriers").shared_memory_bytes == 0
    )


def test_a_cuda_core_without_the_names_is_unsupported_and_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", ModuleType("cuda.core"))
    with pytest.raises(UnsupportedError, match=r"cuda-core 0\.5 or later"):
        compile_source.__wrapped__("naive.cu", "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "multiply"), [("fp32", "FMUL"), ("fp64", "DMUL")])
def test_the_smallest_kernel_is_one_multiplication(precision, multiply):
    code = compiled(CudaElementwise(precision), "sm_90", Shape(1_000_000, 1, 1, 1))
    text = disassembled(code.code)
    assert len(re.findall(rf"\b{multiply}\b", text)) == 1
    assert code.resources.spill_bytes == 0
