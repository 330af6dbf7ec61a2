import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from support.compiled import spilled_registers, triton_code
from support.machine_code import resource_usage
from support.said import refused
from support.shape_classes import shape_classes
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Shape

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

BLOCK = (32, 64, 16)
SHAPES = {"single": Shape(1, 1, 1, 1)} | shape_classes(64, 32)
# Not bfloat16: the interpreter multiplies its bits as integers. The compiled code below covers it.
PRECISIONS = ("fp16", "fp8", "fp32", "tf32", "int8")


def interpreted(cases):
    """In a process of its own: the interpreter is chosen when a kernel is decorated."""
    script = ROOT / "tests/support" / "triton_interpreter.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, str(script), json.dumps(cases)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    # NumPy 2.4 refuses what Triton 3.6 does
    if "0-dimensional arrays can be converted" in finished.stderr:
        pytest.skip(
            f"the interpreter of Triton {version('triton')} does not run with NumPy {version('numpy')}"
        )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout)


def wrong(cases):
    answers = zip(cases, interpreted(cases), strict=True)
    return [f"{case}: {answer['said']}" for case, answer in answers if not answer["correct"]]


@pytest.mark.parametrize("precision", few(PRECISIONS))
def test_the_plain_rung_is_right_for_every_shape(precision):
    assert (
        wrong(
            [("triton_plain", "TritonPlain", precision, BLOCK, shape) for shape in SHAPES.values()]
        )
        == []
    )


@pytest.mark.slow
def test_the_autotuned_rung_s_tiles_and_the_default_are_right():
    from mfulab.kernels.triton_autotuned import CANDIDATES

    tiles = sorted({(m, n, depth // 2) for m, n, depth, *_ in CANDIDATES})
    assert (
        wrong(
            [
                ("triton_plain", "TritonPlain", "fp16", tile, (1, 130, 257, 129))
                for tile in [None, *tiles]
            ]
        )
        == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("precision", few(PRECISIONS))
def test_the_persistent_rung_is_right_for_every_shape_that_it_takes(precision, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    from mfulab.kernels.triton_persistent import TritonPersistent

    kernel = TritonPersistent(precision, BLOCK)
    taken = []
    for name, shape in SHAPES.items():
        if name in ("single", "one_under", "one_over"):
            with pytest.raises(UnsupportedError, match="multiples of 16 bytes"):
                kernel.require("cuda", shape)
        else:
            kernel.require("cuda", shape)
            taken.append(shape)
    assert (
        wrong(
            [("triton_persistent", "TritonPersistent", precision, BLOCK, shape) for shape in taken]
        )
        == []
    )


def test_rows_that_descriptors_cannot_describe_are_unsupported(monkeypatch):
    from mfulab.kernels.triton_persistent import TritonPersistent

    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))

    kernel = TritonPersistent("bf16")
    kernel.require("cuda", Shape(1, 1, 8, 8))
    with pytest.raises(UnsupportedError, match="multiples of 16 bytes"):
        kernel.require("cuda", Shape(1, 8, 8, 9))
    with pytest.raises(UnsupportedError, match="multiple of 64"):
        kernel.require("cuda", Shape(2, 8, 8, 8))


def test_the_autotuned_rung_tells_the_winner_s_tile_and_grid(monkeypatch):
    from triton import Config

    from mfulab.kernels.triton_autotuned import TritonAutotuned, autotuned

    kernel, shape = TritonAutotuned("bf16"), Shape(2, 300, 500, 64)
    assert kernel.launch(shape).block == ()
    winner = Config({"tile_m": 128, "tile_n": 256, "tile_k": 64}, num_warps=8, num_stages=3)
    monkeypatch.setattr(autotuned(2), "best_config", winner, raising=False)
    assert kernel.launch(shape).block == (128, 256, 64)
    assert kernel.launch(shape).grid == (6, 2)


@pytest.mark.parametrize("precision", ["int8", "bf16", "tf32"])
def test_a_t4_hears_what_triton_lacks_there_and_not_its_compiler_s_dump(precision, monkeypatch):
    from mfulab.kernels import triton_kernels
    from mfulab.kernels.triton_plain import TritonPlain

    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (7, 5))
    monkeypatch.setattr(triton_kernels, "generation", lambda: (7, 5))
    with refused(UnsupportedError, "capability_too_low", need="8.0", has="7.5"):
        TritonPlain(precision).require("cuda", Shape(1, 256, 256, 256))


# Compiles by Triton's `input_precision` of each AMD architecture.
AMD_TF32 = {"gfx90a": False, "gfx942": True, "gfx950": False, "gfx1100": False}
LDS_BYTES = 64 << 10


@pytest.mark.parametrize("architecture", few(AMD_TF32, kept=2))
def test_amd_s_tf32_is_refused_where_triton_does_not_compile_it(architecture, monkeypatch):
    from triton.compiler.errors import CompilationError

    from mfulab.kernels import triton_kernels
    from mfulab.kernels.triton_plain import TritonPlain

    monkeypatch.setattr(triton_kernels, "generation", lambda: (0, 0))
    monkeypatch.setattr(triton_kernels, "amd_architecture", lambda: architecture)
    kernel, shape = TritonPlain("tf32"), Shape(1, 256, 256, 256)
    if AMD_TF32[architecture]:
        kernel.require("cuda", shape)
        assert triton_code(kernel, architecture).metadata.shared <= LDS_BYTES
    else:
        with refused(UnsupportedError, "triton_tf32_on_amd", has=architecture):
            kernel.require("cuda", shape)
        with pytest.raises(CompilationError, match="input_precision"):
            triton_code(kernel, architecture)


@pytest.mark.parametrize("precision", few(("bf16", "fp16", "fp32", "int8")))
@pytest.mark.parametrize("architecture", few(("gfx1100", "gfx942", "gfx90a", "gfx950", "gfx1201")))
def test_the_plain_rung_fits_amd_s_cards_without_a_spill(architecture, precision, monkeypatch):
    from mfulab.kernels import triton_kernels
    from mfulab.kernels.triton_plain import TritonPlain

    monkeypatch.setattr(triton_kernels, "generation", lambda: (0, 0))
    monkeypatch.setattr(triton_kernels, "amd_architecture", lambda: architecture)
    compiled = triton_code(TritonPlain(precision), architecture)
    code = compiled.asm["amdgcn"]
    assert compiled.metadata.shared <= LDS_BYTES
    is_instinct = architecture.startswith(triton_kernels.INSTINCT)
    has_units = is_instinct or precision != "fp32"
    assert bool(re.search("v_mfma|v_wmma", code)) == has_units
    assert spilled_registers(code) == 0


@pytest.mark.parametrize("capability", [(8, 0), (8, 9)], ids=str)
def test_without_a_copy_engine_the_persistent_rung_would_load_single_elements(
    capability, monkeypatch
):
    from mfulab.kernels.triton_persistent import TritonPersistent

    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: capability)
    with pytest.raises(UnsupportedError, match=r"needs compute capability 9\.0"):
        TritonPersistent("bf16").require("cuda", Shape(1, 256, 256, 256))


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "copies"), [(80, False), (90, True)])
def test_descriptors_are_bulk_copies_since_hopper_alone(capability, copies, monkeypatch):
    from mfulab.kernels.triton_persistent import TritonPersistent

    monkeypatch.setattr("mfulab.kernels.triton_kernels.generation", lambda: divmod(capability, 10))
    kernel = TritonPersistent("bf16", (128, 128, 64))
    ptx = triton_code(kernel, capability, persistent=True).asm["ptx"]
    assert ("cp.async.bulk.tensor" in ptx) == copies
    assert ("ld.global.b16" in ptx) != copies


def test_hopper_s_tf32_has_the_wide_tile_whose_operands_shared_memory_can_give():
    from mfulab.kernels.triton_kernels import tile_for

    assert tile_for("tf32", (9, 0)) == (128, 256, 32)
    assert tile_for("tf32", (8, 0)) == tile_for("fp32", (9, 0)) == (128, 128, 32)


# Shared memory that a block may have, by compute capability: CUDA C++ programming guide.
CARDS = [
    (75, 64, "fp16"),
    (75, 64, "fp32"),
    (80, 163, "bf16"),
    (86, 99, "bf16"),
    (89, 99, "bf16"),
    (100, 227, "bf16"),
]


@pytest.mark.parametrize(("capability", "kib", "precision"), few(CARDS))
def test_the_default_tile_fits_each_card_and_uses_tensor_cores_from_ampere_on(
    capability, kib, precision, monkeypatch
):
    from mfulab.kernels import triton_kernels
    from mfulab.kernels.triton_plain import TritonPlain

    monkeypatch.setattr(triton_kernels, "generation", lambda: divmod(capability, 10))
    compiled = triton_code(TritonPlain(precision), capability)
    assert compiled.metadata.shared <= kib << 10
    assert bool(re.search(r"mma", compiled.asm["ptx"])) == (capability >= 80), (
        "what quickstart_gpu says of Triton"
    )


@pytest.mark.parametrize(
    ("precision", "instruction"),
    [
        ("bf16", "wgmma.mma_async"),
        ("fp16", "wgmma.mma_async"),
        ("fp8", "wgmma.mma_async"),
        ("tf32", "wgmma.mma_async"),
        ("int8", "wgmma.mma_async"),
        ("fp32", "fma.rn.f32"),
    ],
)
def test_the_default_tile_compiles_for_hopper(precision, instruction):
    from mfulab.kernels.triton_plain import TritonPlain

    compiled = triton_code(TritonPlain(precision), 90)
    assert instruction in compiled.asm["ptx"]
    if precision == "fp32":
        assert "tf32" not in compiled.asm["ptx"]
    assert compiled.metadata.shared <= 227 << 10
    # Of the main loop's copies none is shorter than 16 bytes: B lies as its multiplier takes it.
    assert set(
        re.findall(r"cp\.async\.\w+\.shared\.global \[.*?\], \[.*?\], 0x(\w+)", compiled.asm["ptx"])
    ) == {"10"}
    usage = resource_usage(compiled.asm["cubin"])
    assert usage["LOCAL"] == usage["STACK"] == 0
