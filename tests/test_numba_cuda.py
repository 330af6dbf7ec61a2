import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine_code import disassembled, needs_nvrtc, resource_usage
from numba import float32, float64, types, uint32
from numba_machine_code import assembled, ptx_of

from mfulab.errors import UnsupportedError
from mfulab.kernels.base import Shape
from mfulab.kernels.numba_cuda_coalesced import NumbaCudaCoalesced
from mfulab.kernels.numba_cuda_naive import NumbaCudaNaive
from mfulab.kernels.numba_cuda_register import NumbaCudaRegister
from mfulab.kernels.numba_cuda_shared import NumbaCudaShared
from mfulab.kernels.numba_cuda_tensor_core import NumbaCudaTensorCore
from mfulab.kernels.numba_cuda_transposed import NumbaCudaTransposed
from mfulab.kernels.numba_cuda_unrolled import NumbaCudaUnrolled

SMALL = [(1, 1, 1, 1), (2, 9, 17, 11), (1, 1, 23, 8)]
LARGE = [(1, 130, 3, 9), (2, 5, 135, 11)]
CASES = [
    (kind, precision, block, shape)
    for kind, precisions, block, shapes in [
        (NumbaCudaNaive, ("fp32", "fp64"), (8, 4), SMALL),
        (NumbaCudaTransposed, ("fp32", "fp64"), (8, 4), SMALL),
        (NumbaCudaCoalesced, ("fp32", "fp64"), (8, 4), SMALL),
        (NumbaCudaShared, ("fp32", "fp64"), (8, 8), SMALL),
        (NumbaCudaRegister, ("fp32",), None, LARGE),
        (NumbaCudaUnrolled, ("fp32",), None, LARGE),
        (NumbaCudaTensorCore, ("tf32",), None, LARGE),
    ]
    for precision in precisions
    for shape in (shapes if precision != "fp64" else shapes[1:2])
]
KINDS = {kind: precisions for kind, precisions, *_ in CASES}


def _name(case):
    kind, precision, _, shape = case
    return f"{kind.__name__}-{precision}-{'x'.join(map(str, shape))}"


@pytest.fixture(scope="module")
def simulated():
    """All cases in one process of the simulator: it replaces numba.cuda and cannot share this one."""
    asked = [(kind.__module__.rsplit(".", 1)[1], kind.__name__, *rest) for kind, *rest in CASES]
    script = Path(__file__).with_name("numba_simulator.py")
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    finished = subprocess.run(
        [sys.executable, str(script), json.dumps(asked)], capture_output=True, text=True, env=environment, check=False
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return dict(zip(map(_name, CASES), json.loads(finished.stdout), strict=True))


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_every_rung_is_right_in_the_simulator(simulated, case):
    answer = simulated[_name(case)]
    assert answer["correct"], answer["said"]
    assert answer["effective"] == case[1]


def _machine_code(kind, precision):
    needs_nvrtc()
    real = float64 if precision == "fp64" else float32
    if kind is NumbaCudaUnrolled:
        arguments = (types.Array(real, 1, "C"),) * 3 + (uint32,) * 3
    else:
        arguments = (types.Array(real, 3, "C"),) * 3
    ptx = ptx_of(kind(precision).dispatcher(), arguments)
    return ptx, assembled(ptx)


@pytest.mark.parametrize(
    ("kind", "precision"),
    sorted({case[:2] for case in CASES}, key=str),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_machine_code_multiplies_in_the_asked_format_and_spills_nothing(kind, precision):
    ptx, code = _machine_code(kind, precision)
    text, usage = disassembled(code), resource_usage(code)
    expected = {"fp32": "FFMA", "fp64": "DFMA", "tf32": r"HMMA\.1688\.F32\.TF32"}[precision]
    assert re.search(rf"\b{expected}", text)
    if precision != "fp64":
        assert not re.search(r"\b(DFMA|DADD|DMUL)\b", text)
        assert "cvt.f64.f32" not in ptx
    assert usage["STACK"] == usage["LOCAL"] == 0
    assert not re.search(r"\b(STL|LDL)\b", text)


def test_the_unrolled_rung_reads_128_bits_and_lets_two_blocks_fit():
    _, code = _machine_code(NumbaCudaUnrolled, "fp32")
    text = disassembled(code)
    assert text.count("LDS.128") == 32
    assert len(re.findall(r"\bFFMA\b", text)) == 512  # 8×8 elements, 8 of the inner dimension
    assert resource_usage(code)["REG"] <= 128


def test_an_index_of_32_bits_has_an_end(monkeypatch):
    with pytest.raises(UnsupportedError, match="32-bit index"):
        NumbaCudaUnrolled("fp32").require("cuda", Shape(1, 65536, 65536, 8))


@pytest.mark.parametrize("kind", [NumbaCudaNaive, NumbaCudaShared])
def test_the_default_block_comes_from_the_device(kind, monkeypatch):
    monkeypatch.setattr("mfulab.kernels.devices.most_threads", lambda: 1024)
    assert kind("fp32").launch(Shape(1, 64, 64, 64)).block == (32, 32)
    monkeypatch.setattr("mfulab.kernels.devices.most_threads", lambda: 512)
    assert kind("fp32").launch(Shape(1, 64, 64, 64)).block == (22, 22)
