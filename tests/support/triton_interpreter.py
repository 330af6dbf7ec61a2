"""Runs Triton kernels on CPU tensors with TRITON_INTERPRET=1, and prints their errors as JSON."""

import importlib
import json
import sys

from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.verification import check, exact_product, random_operands


def error_of(module: str, name: str, precision: str, block, shape: Shape) -> dict:
    kernel = getattr(importlib.import_module(f"mfulab.kernels.{module}"), name)(precision, block)
    form = FORMATS[precision]
    operands = random_operands(shape, form, "cpu", seed=13)
    operands.poison()
    kernel.run(*kernel.prepare(operands.a, operands.b, operands.c), launch=kernel.launch(shape))
    result = check(operands.c, exact_product(operands.a, operands.b), form, shape.k)
    return {"correct": result.correct, "said": str(result)}


if __name__ == "__main__":
    cases = json.loads(sys.argv[1])
    answers = [
        error_of(module, name, precision, block, Shape(*shape))
        for module, name, precision, block, shape in cases
    ]
    print(json.dumps(answers))
