"""The rung on mma.sync: right on the host for whole rows, and its instructions in machine code."""

import re

import pytest
from support.cuda_on_host import run_on_host
from support.machine_code import disassembled, main_loops, needs_nvrtc
from support.slow import few

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.cuda_mma import CudaMma
from mfulab.kernels.devices import DYNAMIC_SHARED_BYTES
from mfulab.kernels.verification import check, exact_product, random_operands

SHAPES = [
    Shape(2, 129, 136, 48),
    Shape(1, 1, 8, 8),
    Shape(1, 130, 264, 200),
    Shape(1, 64, 520, 320),
]
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
SQUARE = Shape(1, 4096, 4096, 4096)


@pytest.mark.parametrize("precision", few(["bf16", "fp16"]))
@pytest.mark.parametrize("place", few(range(len(SHAPES)), 2))
def test_it_is_right_on_the_host(precision, place):
    kernel = CudaMma(precision)
    shape = SHAPES[place]
    form = FORMATS[precision]
    operands = random_operands(shape, form, "cpu", seed=5)
    operands.poison()
    run_on_host(kernel, operands.a, operands.b, operands.c, shape)
    result = check(operands.c, exact_product(operands.a, operands.b), form, shape.k)
    assert result.correct, str(result)
    assert result.effective_precision == precision


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_spills_on_no_card_and_multiplies_what_it_loads_as_matrices(precision, arch):
    needs_nvrtc()
    code = CudaMma(precision).compile(arch, SQUARE)
    assert code.resources.spill_bytes == 0
    assert code.resources.registers <= 255
    text = disassembled(code.code)
    (main,) = main_loops(text, r"HMMA\.16816")
    counted = {
        name: sum(bool(re.match(name, opcode)) for opcode in main)
        for name in (r"HMMA\.16816\.F32", "LDSM", r"LDGSTS.*128", "BAR", r"STS|LDG\.")
    }
    assert list(counted.values()) == [64, 16, 6, 1, 0]


def test_its_tiles_fit_every_card_that_it_takes():
    assert CudaMma("bf16").launch(SQUARE).shared_memory_bytes <= DYNAMIC_SHARED_BYTES


def test_rows_that_are_no_whole_copies_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (8, 6))
    CudaMma("bf16").require("cuda", Shape(1, 7, 8, 16))
    for n, k in ((9, 16), (8, 17)):
        with pytest.raises(UnsupportedError, match="multiples of 16 bytes"):
            CudaMma("bf16").require("cuda", Shape(1, 8, n, k))
