import json
import os
import re
import subprocess
import sys

import pytest
from numba import float32, float64, types, uint32
from support.ladders import KINDS, SEMINAR
from support.machine_code import disassembled, main_loops, needs_nvrtc, resource_usage
from support.numba_machine_code import assembled, ptx_of
from support.shape_classes import shape_classes
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Shape
from mfulab.kernels.numba_cuda_async import NumbaCudaAsync
from mfulab.kernels.numba_cuda_naive import NumbaCudaNaive
from mfulab.kernels.numba_cuda_shared import NumbaCudaShared
from mfulab.kernels.numba_cuda_tensor_core import NumbaCudaTensorCore
from mfulab.kernels.numba_cuda_unrolled import NumbaCudaUnrolled
from mfulab.kernels.numba_cuda_wide import NumbaCudaWide

# A rung takes some ten seconds.
FIRST = [
    one
    for at, kind in enumerate(KINDS)
    for one in few(((kind, each) for each in kind.precisions), int(at < 1))
]
RUNGS = [(kind, precision) for kind in KINDS for precision in kind.precisions]


def _simulated(cases):
    """Answers for (kind, precision, block, shape), from a process of its own: the simulator
    replaces numba.cuda."""
    named = [(kind.__module__.rsplit(".", 1)[1], kind.__name__, *rest) for kind, *rest in cases]
    script = ROOT / "tests/support" / "numba_simulator.py"
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    finished = subprocess.run(
        [sys.executable, str(script), json.dumps(named)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout)


@pytest.mark.slow
def test_the_seminar_s_kernels_are_right_but_for_tiles_that_overhang():
    """1000 is no multiple of 32, as 12 is none of 8: the shared-memory kernel then reads
    outside,
    and the guarded one does not."""
    whole, overhanging = Shape(1, 16, 8, 24), Shape(1, 12, 12, 12)
    cases = [
        (kind, "fp32", block, shape)
        for kind, (block, _, _) in SEMINAR.items()
        for shape in (whole, overhanging)
    ]
    answers = _simulated(cases)
    assert [answer["correct"] for answer in answers] == 7 * [True] + [False]
    assert "out of bounds" in answers[-1]["said"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEMINAR)
def test_the_seminar_s_accumulator_is_float64(kind):
    ptx, _ = _machine_code(kind, "fp32")
    assert "cvt.f64.f32" in ptx
    assert re.search(r"add(\.rn)?\.f64", ptx)


@pytest.mark.parametrize(("kind", "precision"), FIRST)
def test_every_rung_is_right_in_the_simulator(kind, precision):
    block, tile, depth = KINDS[kind]
    classes = shape_classes(
        tile, depth
    )  # the simulator takes a second for each thousand threads: those with edges
    under, over = classes["one_under"], classes["one_over"]
    edges = Shape(1, over.m, under.n, over.k)
    shapes = {"single": Shape(1, 1, 1, 1), "over and under": edges, "batched": classes["batched"]}
    if kind is NumbaCudaAsync:  # its rows are of whole copies
        shapes["single"] = Shape(1, 1, 1, 4)
        shapes["over and under"] = edges._replace(k=depth + 4)
    if kind is NumbaCudaWide:  # of B alone
        shapes["single"] = Shape(1, 1, 4, 1)
        shapes["over and under"] = edges._replace(n=under.n - 3)
    answers = dict(
        zip(
            shapes,
            _simulated([(kind, precision, block, shape) for shape in shapes.values()]),
            strict=True,
        )
    )
    assert {name: answer["said"] for name, answer in answers.items() if not answer["correct"]} == {}
    assert {answer["effective"] for answer in answers.values()} == {precision}


def _machine_code(kind, precision, capability=(9, 0)):
    needs_nvrtc()
    real = float64 if precision == "fp64" else float32
    if issubclass(kind, NumbaCudaUnrolled):
        arguments = (types.Array(real, 1, "C"),) * 3 + (uint32,) * 3
    else:
        arguments = (types.Array(real, 3, "C"),) * 3
    ptx = ptx_of(kind(precision).dispatcher(), arguments, capability)
    return ptx, assembled(ptx, "sm_{}{}".format(*capability))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(9, 0), (12, 0)])
@pytest.mark.parametrize(("kind", "precision"), RUNGS)
def test_machine_code_multiplies_in_the_asked_format_and_spills_nothing(
    kind, precision, capability
):
    ptx, code = _machine_code(kind, precision, capability)
    text, usage = disassembled(code), resource_usage(code)
    expected = {"fp32": "FFMA", "fp64": "DFMA", "tf32": r"HMMA\.1688\.F32\.TF32"}[precision]
    assert re.search(rf"\b{expected}", text)
    if precision != "fp64":
        assert not re.search(r"\b(DFMA|DADD|DMUL)\b", text)
        assert "cvt.f64.f32" not in ptx
    assert usage["LOCAL"] == 0
    if (kind, capability) == (NumbaCudaUnrolled, (12, 0)):  # two blocks an SM: docs/kernels.md
        assert usage["STACK"] == 16
        return
    assert usage["STACK"] == 0
    assert not re.search(r"\b(STL|LDL)\b", text)


def _lets_two_blocks_fit(code):
    usage = resource_usage(code)
    return usage["REG"] <= 128 and usage["STACK"] == usage["LOCAL"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0)])
def test_the_unrolled_rung_reads_128_bits_and_lets_two_blocks_fit(capability):
    _, code = _machine_code(NumbaCudaUnrolled, "fp32", capability)
    text = disassembled(code)
    assert text.count("LDS.128") == 32
    assert len(re.findall(r"\bFFMA\b", text)) == 512  # 8×8 elements, 8 of the inner dimension
    assert _lets_two_blocks_fit(code)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0)])
def test_the_tensor_core_rung_loads_without_branches_and_lets_two_blocks_fit(capability):
    """All 16 loads of a step are on their way before its products: no branch stands among them."""
    _, code = _machine_code(NumbaCudaTensorCore, "tf32", capability)
    (main,) = main_loops(disassembled(code), r"HMMA\.1688")
    loads = [place for place, opcode in enumerate(main) if opcode.startswith("LDG")]
    assert len(loads) == 16
    assert max(loads) < min(place for place, opcode in enumerate(main) if opcode.startswith("HMMA"))
    assert sum(opcode.startswith("BRA") for opcode in main) == 1, "the loop's own"
    assert sum(opcode.startswith("BAR") for opcode in main) == 1
    assert _lets_two_blocks_fit(code)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_the_asynchronous_rung_s_loop_is_copies_matrix_loads_and_products(capability):
    """A step of 16: 64 products of a warp from 16 matrix loads, 8 copies, and no other access."""
    _, code = _machine_code(NumbaCudaAsync, "tf32", capability)
    (main,) = main_loops(disassembled(code), r"HMMA\.1688")
    names = ("HMMA.1688.F32.TF32", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128", "BAR.SYNC")
    counted = [sum(opcode.startswith(name) for opcode in main) for name in names]
    assert counted == [64, 16, 8, 1]
    assert not [opcode for opcode in main if re.match(r"(LDG|LDS|STS|LDL|STL|LD|ST)(\.|$)", opcode)]
    usage = resource_usage(code)
    assert usage["STACK"] == usage["LOCAL"] == 0
    threads = NumbaCudaAsync("tf32").launch(Shape(1, 128, 128, 16)).block[0]
    assert 2 * threads * usage["REG"] <= 65536, "two blocks an SM"


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_the_wide_rung_s_loop_is_copies_reads_of_128_bits_and_multiply_adds(capability):
    """A step of 8: 1,024 multiply-adds of a thread from 48 reads and 10 copies."""
    _, code = _machine_code(NumbaCudaWide, "fp32", capability)
    (main,) = main_loops(disassembled(code), r"FFMA")
    names = ("FFMA", "LDS.128", "LDGSTS.E.BYPASS.128", "LDGSTS.E", "BAR.SYNC")
    counted = [sum(opcode.startswith(name) for opcode in main) for name in names]
    assert counted == [1024, 48, 2, 10, 1]
    assert not [opcode for opcode in main if re.match(r"(LDG|STS|LDL|STL|LD|ST)(\.|$)", opcode)]
    usage = resource_usage(code)
    assert usage["STACK"] == usage["LOCAL"] == 0
    threads = NumbaCudaWide("fp32").launch(Shape(1, 128, 128, 8)).block[0]
    assert 2 * threads * usage["REG"] <= 65536, "two blocks an SM"


def test_an_index_of_32_bits_has_an_end(monkeypatch):
    monkeypatch.setattr("mfulab.device.gpu.capability_of", lambda: (9, 0))
    with pytest.raises(UnsupportedError, match="32-bit index"):
        NumbaCudaUnrolled("fp32").require("cuda", Shape(1, 65536, 65536, 8))


@pytest.mark.parametrize("kind", [NumbaCudaNaive, NumbaCudaShared])
def test_the_default_block_comes_from_the_device(kind, monkeypatch):
    monkeypatch.setattr("mfulab.kernels.devices.most_threads", lambda: 1024)
    assert kind("fp32").launch(Shape(1, 64, 64, 64)).block == (32, 32)
    monkeypatch.setattr("mfulab.kernels.devices.most_threads", lambda: 512)
    assert kind("fp32").launch(Shape(1, 64, 64, 64)).block == (22, 22)
