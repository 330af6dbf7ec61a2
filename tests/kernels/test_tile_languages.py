"""cuTile, which comes with an extra: as much of it as is installed here."""

import importlib.util
import io
import re
import sys
from collections import Counter

import pytest
import torch
from support.machine_code import disassembled, instructions

from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.cutile import CuTile
from mfulab.kernels.verification import random_operands


def installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_a_language_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.tile", None)
    kernel, shape = CuTile("bf16"), Shape(1, 16, 16, 16)
    operands = random_operands(shape, FORMATS["bf16"], "cpu", seed=1)
    with pytest.raises(ModuleNotFoundError, match=r"cuda\.tile"):
        kernel.run(*kernel.prepare(operands.a, operands.b, operands.c), launch=kernel.launch(shape))


def test_tiles_cover_every_shape():
    for precision in CuTile.precisions:
        kernel = CuTile(precision)
        tile_m, tile_n, _ = kernel.sides
        grid = kernel.launch(Shape(3, tile_m + 1, 2 * tile_n, 64)).grid
        assert torch.tensor(grid).prod() == 3 * 2 * 2


# A test that skipped would be a failure where everything is to be checked: what is not installed is
# not collected.
if installed("cuda.tile"):

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("precision", "product"),
        [("bf16", "HGMMA"), ("fp8", "QGMMA"), ("tf32", "HGMMA"), ("fp32", "FMUL|FFMA")],
    )
    def test_cutile_s_compiler_takes_the_best_products_there_are(precision, product):
        import cuda.tile as ct
        from cuda.tile import compilation

        from mfulab.kernels import cutile

        names = {"bf16": ("bfloat16",) * 2, "fp8": ("float8_e4m3fn", "bfloat16")}

        def array(name):
            return compilation.ArrayConstraint(
                getattr(ct, name),
                3,
                index_dtype=ct.int32,
                stride_lower_bound_incl=0,
                alias_groups=(),
                may_alias_internally=False,
                stride_constant=(None, None, 1),
                stride_divisible_by=(16, 16, 1),
                base_addr_divisible_by=16,
            )

        operand, output = names.get(precision, ("float32",) * 2)
        sides = [compilation.ConstantConstraint(side) for side in CuTile(precision).sides]
        signature = compilation.KernelSignature(
            [array(operand), array(operand), array(output), *sides],
            calling_convention=compilation.CallingConvention.cutile_python_v1(),
        )
        cubin = io.BytesIO()
        how = {"gpu_code": "sm_90", "output_format": "cubin"}
        try:
            compilation.export_kernel(cutile.kernel(precision), [signature], cubin, **how)
        except FileNotFoundError as missing:  # the extra brings no compiler: docs/kernels.md
            pytest.skip(str(missing))
        opcodes = Counter(opcode for _, opcode, _ in instructions(disassembled(cubin.getvalue())))
        assert any(re.match(product, opcode) for opcode in opcodes)
        assert not any(opcode.startswith(("STL", "LDL")) for opcode in opcodes), "nothing spills"
