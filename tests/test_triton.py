import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from machine_code import resource_usage

from mfulab.errors import UnsupportedError
from mfulab.kernels.base import Shape

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

BLOCK = (32, 64, 16)
# Not bfloat16: the interpreter multiplies its bits as integers. The compiled code below covers it.
CASES = [
    *[
        ("triton_plain", "TritonPlain", precision, BLOCK, (2, 33, 65, 37))
        for precision in ("fp32", "fp8", "fp16", "int8")
    ],
    ("triton_plain", "TritonPlain", "fp32", BLOCK, (1, 1, 1, 1)),
    ("triton_plain", "TritonPlain", "fp32", BLOCK, (1, 300, 70, 16)),
    ("triton_plain", "TritonPlain", "fp16", None, (1, 1, 257, 129)),
    *[("triton_persistent", "TritonPersistent", precision, BLOCK, (1, 33, 72, 40)) for precision in ("fp32", "tf32")],
    ("triton_persistent", "TritonPersistent", "fp16", BLOCK, (3, 65, 136, 32)),
]


def _name(case):
    _, name, precision, block, shape = case
    return f"{name}-{precision}-{'x'.join(map(str, shape))}{'' if block else '-default'}"


@pytest.fixture(scope="module")
def interpreted():
    """All cases in one process of the interpreter: it is chosen when a kernel is decorated."""
    script = Path(__file__).with_name("triton_interpreter.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, str(script), json.dumps(CASES)], capture_output=True, text=True, env=environment, check=False
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return dict(zip(map(_name, CASES), json.loads(finished.stdout), strict=True))


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_every_rung_is_right_in_the_interpreter(interpreted, case):
    assert interpreted[_name(case)]["correct"], interpreted[_name(case)]["said"]


def test_rows_that_descriptors_cannot_describe_are_unsupported():
    from mfulab.kernels.triton_persistent import TritonPersistent

    kernel = TritonPersistent("bf16")
    kernel.require("cuda", Shape(1, 1, 8, 8))
    with pytest.raises(UnsupportedError, match="multiples of 16 bytes"):
        kernel.require("cuda", Shape(1, 8, 8, 9))
    with pytest.raises(UnsupportedError, match="multiple of 64"):
        kernel.require("cuda", Shape(2, 8, 8, 8))


def _compiled(kernel, precision):
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
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize(
    ("precision", "instruction"),
    [
        ("bf16", "wgmma.mma_async"),
        ("fp16", "wgmma.mma_async"),
        ("fp8", "wgmma.mma_async"),
        ("tf32", "tf32"),
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
    usage = resource_usage(compiled.asm["cubin"])
    assert usage["LOCAL"] == usage["STACK"] == 0
