"""Runs one matmul with one kernel and checks the result. Meant to be run under a profiler or
sanitizer.

python validation/one_product.py cuda_hopper_hilbert bf16 256x512x1024
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.verification import check, exact_product, random_operands
from mfulab.lab.planning import keys

CONFIG = Path(__file__).parents[1] / "config"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the error against the float64 matmul. Returns 1 if it is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernel", choices=keys.choices(CONFIG, "kernel"))
    parser.add_argument("precision", choices=sorted(FORMATS))
    parser.add_argument("size", help="N, MxNxK or BATCHxMxNxK")
    options = parser.parse_args(arguments)
    sides = [int(side) for side in options.size.split("x")]
    if len(sides) == 1:
        sides = sides * 3
    if len(sides) == 3:
        sides = [1, *sides]
    shape = Shape(*sides)
    target = keys.content(CONFIG, "kernel", options.kernel)["_target_"]
    module, _, name = target.rpartition(".")
    kernel = getattr(importlib.import_module(module), name)(options.precision)
    form = FORMATS[options.precision]
    device = "cuda" if "cuda" in kernel.devices and torch.cuda.is_available() else "cpu"
    kernel.require(device, shape)
    operands = random_operands(shape, form, device, seed=1)
    operands.poison()
    prepared = kernel.prepare(operands.a, operands.b, operands.c)
    returned = kernel.run(*prepared, launch=kernel.launch(shape))
    if device == "cuda":
        torch.cuda.synchronize()
    product = operands.c if returned is None else returned.view_as(operands.c)
    result = check(product, exact_product(operands.a, operands.b), form, shape.k)
    print(f"{options.kernel} {options.precision} {shape} on {device}: {result}")
    return int(not result.correct)


if __name__ == "__main__":
    sys.exit(main())
