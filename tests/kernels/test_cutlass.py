"""The rung of CUTLASS's templates, whose headers come with an extra: as much of it as they let be
checked here."""

import importlib.util
import re

import pytest
from support.cuda_on_host import HostError
from support.cutlass_on_host import run_on_host
from support.machine_code import disassembled, main_loops, needs_nvrtc, resource_usage
from support.slow import few

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.kernels import cutlass
from mfulab.kernels.base import Shape
from mfulab.kernels.cutlass import Cutlass
from mfulab.kernels.devices import DYNAMIC_SHARED_BYTES
from mfulab.kernels.verification import check, exact_product, random_operands

SQUARE = Shape(1, 4096, 4096, 4096)
WHOLE_ROWS = {  # two of a batch; less than a tile; whole steps of k; columns of tiles by four and eight
    "batch": Shape(2, 129, 136, 48),
    "small": Shape(1, 1, 8, 8),
    "steps": Shape(1, 130, 264, 200),
    "columns": Shape(1, 20, 1800, 8),
}
ODD = {"odd": Shape(1, 33, 77, 19)}
HOST_CASES = [
    (precision, shape) for precision in ("bf16", "fp16", "tf32", "fp32") for shape in WHOLE_ROWS
]
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_86", "sm_100a", "sm_120")
PRODUCT = {
    "fp32": "FFMA",
    "tf32": r"HMMA\.1688\.F32\.TF32",
    "fp16": r"HMMA\.16816\.F32$",
    "bf16": r"HMMA\.16816\.F32\.BF16",
}
# Of a step of the main loop: products, loads of matrices and others from shared memory, copies, barriers.
COUNTED = {
    "fp32": [1024, 0, 48, 12, 1],
    "tf32": [64, 8, 32, 6, 1],
    "fp16": [64, 16, 0, 6, 1],
    "bf16": [64, 16, 0, 6, 1],
}


@pytest.mark.parametrize("precision", Cutlass.precisions)
def test_its_tiles_fit_every_card_that_it_takes(precision):
    assert Cutlass(precision).launch(SQUARE).shared_memory_bytes <= DYNAMIC_SHARED_BYTES


@pytest.mark.parametrize(
    ("n", "grid"),
    [
        (256, (3, 1, 2)),
        (512, (3 * 2, 1, 2)),
        (5 * 256, (3 * 4, 2, 2)),
        (6 * 256, (3 * 8, 1, 2)),
        (8 * 256 + 1, (3 * 8, 2, 2)),
    ],
)
def test_the_grid_is_cutlass_s_own(n, grid):
    assert Cutlass("fp32").launch(Shape(2, 257, n, 64)).grid == grid


def test_rows_that_are_no_whole_copies_are_refused_but_for_fp32(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (8, 0))
    Cutlass("fp32").require("cuda", Shape(1, 7, 9, 17))
    for precision, n, k in [("bf16", 12, 16), ("fp16", 8, 20), ("tf32", 6, 4), ("tf32", 4, 6)]:
        with pytest.raises(UnsupportedError) as refused:
            Cutlass(precision).require("cuda", Shape(1, 8, n, k))
        assert refused.value.said.key == "rows_of_16_bytes"


def test_without_the_package_the_row_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *rest: None if name == cutlass.PACKAGE else find(name, *rest),
    )
    needs_nvrtc()
    with pytest.raises(UnsupportedError) as refused:
        Cutlass("bf16").compile("sm_80", SQUARE)
    assert refused.value.said.key == "needs_cutlass"


# A test that skipped would be a failure where everything is to be checked: without the headers none
# is collected.
if importlib.util.find_spec(cutlass.PACKAGE) is not None:

    @pytest.mark.parametrize(("precision", "name"), few([*HOST_CASES, ("fp32", "odd")]))
    def test_cutlass_s_own_kernel_is_right_on_the_host(precision, name):
        shape = (WHOLE_ROWS | ODD)[name]
        form = FORMATS[precision]
        operands = random_operands(shape, form, "cpu", seed=5)
        operands.poison()
        run_on_host(precision, operands.a, operands.b, operands.c, shape)
        result = check(operands.c, exact_product(operands.a, operands.b), form, shape.k)
        assert result.correct, str(result)
        assert result.effective_precision == precision

    @pytest.mark.slow
    def test_rows_that_are_refused_would_be_read_unaligned():
        shape = Shape(1, 33, 72, 20)
        operands = random_operands(shape, FORMATS["bf16"], "cpu", seed=5)
        with pytest.raises(HostError, match="unaligned copy"):
            run_on_host("bf16", operands.a, operands.b, operands.c, shape)

    @pytest.mark.slow
    @pytest.mark.parametrize("arch", ARCHITECTURES)
    @pytest.mark.parametrize("precision", Cutlass.precisions)
    def test_no_card_spills_and_a_step_is_copies_matrix_loads_and_products(precision, arch):
        needs_nvrtc()
        code = Cutlass(precision).compile(arch, SQUARE)
        usage = resource_usage(code.code)
        assert code.resources.spill_bytes == 0
        assert max(usage["STACK"], usage["LOCAL"]) == 0
        assert usage["REG"] == code.resources.registers <= 255
        text = disassembled(code.code)
        assert f".text.{Cutlass.entry}:" in text
        (main,) = main_loops(text, PRODUCT[precision])
        counted = []
        for name in (PRODUCT[precision], "LDSM", r"LDS(\.|$)", "LDGSTS", "BAR"):
            counted.append(sum(bool(re.match(name, opcode)) for opcode in main))
        assert counted == COUNTED[precision]
        assert not [opcode for opcode in main if re.match(r"STS|LDG\.|(LD|ST)(\.|$)", opcode)]
