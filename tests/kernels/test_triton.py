import importlib.util
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from support.machine_code import resource_usage
from support.shape_classes import shape_classes
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Shape

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

BLOCK = (32, 64, 16)
SHAPES = {"single": Shape(1, 1, 1, 1)} | shape_classes(64, 32)
# Not bfloat16: the interpreter multiplies its bits as integers. The compiled code below covers it.
PRECISIONS = ("fp16", "fp8", "fp32", "tf32", "int8")


def interpreted(cases):
    """In a process of its own: the interpreter is chosen when a kernel is decorated."""
    script = ROOT / "tests/support" / "triton_interpreter.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, str(script), json.dumps(cases)], capture_output=True, text=True, env=environment, check=False
    )
    if "0-dimensional arrays can be converted" in finished.stderr:  # NumPy 2.4 refuses what Triton 3.6 does
        pytest.skip(f"the interpreter of Triton {version('triton')} does not run with NumPy {version('numpy')}")
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout)


def wrong(cases):
    answers = zip(cases, interpreted(cases), strict=True)
    return [f"{case}: {answer['said']}" for case, answer in answers if not answer["correct"]]


@pytest.mark.parametrize("precision", few(PRECISIONS))
def test_the_plain_rung_is_right_for_every_shape(precision):
    assert wrong([("triton_plain", "TritonPlain", precision, BLOCK, shape) for shape in SHAPES.values()]) == []


def test_the_autotuned_rung_s_tiles_and_the_default_are_right():
    from mfulab.kernels.triton_autotuned import CANDIDATES

    tiles = sorted({(m, n, depth // 2) for m, n, depth, *_ in CANDIDATES})
    assert wrong([("triton_plain", "TritonPlain", "fp16", tile, (1, 130, 257, 129)) for tile in [None, *tiles]]) == []


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
    assert wrong([("triton_persistent", "TritonPersistent", precision, BLOCK, shape) for shape in taken]) == []


def test_rows_that_descriptors_cannot_describe_are_unsupported():
    from mfulab.kernels.triton_persistent import TritonPersistent

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


def _compiled(kernel, precision, capability=90):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from mfulab.kernels.triton_kernels import matmul_tiles

    kind = {"bf16": "*bf16", "fp16": "*fp16", "fp32": "*fp32", "tf32": "*fp32", "fp8": "*fp8e4nv", "int8": "*i8"}[
        precision
    ]
    output = {"fp8": "*bf16", "int8": "*i32"}.get(precision, kind)
    tiling = kernel.tiling()
    options = {name: tiling.pop(name) for name in ("num_warps", "num_stages")} | kernel.OPTIONS
    constants = kernel.constants() | tiling
    signature = {"a": kind, "b": kind, "c": output} | dict.fromkeys(("batch", "m", "n", "k"), "i32")
    signature |= dict.fromkeys(constants, "constexpr")
    divisible = {(place,): [["tt.divisibility", 16]] for place in range(7) if place != 3}
    source = ASTSource(fn=matmul_tiles, signature=signature, constexprs=constants, attrs=divisible)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options)


# Shared memory that a block may have, by compute capability: CUDA C++ programming guide.
CARDS = [(75, 64, "fp16"), (75, 64, "fp32"), (80, 163, "bf16"), (86, 99, "bf16"), (89, 99, "bf16"), (100, 227, "bf16")]


@pytest.mark.parametrize(("capability", "kib", "precision"), few(CARDS))
def test_the_default_tile_fits_each_card_and_uses_tensor_cores_from_ampere_on(capability, kib, precision):
    from mfulab.kernels.triton_plain import TritonPlain

    compiled = _compiled(TritonPlain(precision), precision, capability)
    assert compiled.metadata.shared <= kib << 10
    assert bool(re.search(r"mma", compiled.asm["ptx"])) == (capability >= 80), "what quickstart_gpu says of Triton"


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

    compiled = _compiled(TritonPlain(precision), precision)
    assert instruction in compiled.asm["ptx"]
    if precision == "fp32":
        assert "tf32" not in compiled.asm["ptx"]
    assert compiled.metadata.shared <= 227 << 10
    # Of the main loop's copies none is shorter than 16 bytes: B lies as its multiplier takes it.
    assert set(re.findall(r"cp\.async\.\w+\.shared\.global \[.*?\], \[.*?\], 0x(\w+)", compiled.asm["ptx"])) == {"10"}
    usage = resource_usage(compiled.asm["cubin"])
    assert usage["LOCAL"] == usage["STACK"] == 0
