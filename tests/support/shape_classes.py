"""All matmul implementations, and classes of shapes that each supports or refuses."""

import importlib

from support.workflow_copy import ROOT

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import MatmulKernel, Shape
from mfulab.lab.planning import keys

CONFIG = ROOT / "config"
KERNELS = {name: keys.content(CONFIG, "kernel", name) for name in keys.choices(CONFIG, "kernel")}


def kernel_class(name: str) -> type[MatmulKernel]:
    """Class of a kernel. Raises ModuleNotFoundError if it needs a package that is not installed."""
    module, _, kind = KERNELS[name]["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), kind)


def kernel_classes() -> dict[str, type[MatmulKernel]]:
    """Classes of all kernels by name."""
    return {name: kernel_class(name) for name in KERNELS}


def shape_classes(tile: int, depth: int) -> dict[str, Shape]:
    """Shapes by name, around a tile of tile × tile of C in steps of `depth`.

    If these are multiples of 16, so are n and k, except in one_under and one_over. So kernels that
    need such multiples are tested too.
    """
    return {
        "square": Shape(1, tile, tile, depth),
        "one_under": Shape(1, tile - 1, tile - 1, depth - 1),
        "one_over": Shape(1, tile + 1, tile + 1, depth + 1),
        "no_multiple": Shape(1, tile + 5, tile // 2 + 32, depth + 16),
        "one_row": Shape(1, 1, tile + 16, depth),
        "sixteen_rows": Shape(1, 16, tile + 16, depth),
        "tall": Shape(1, 2 * tile + 9, 16, depth),
        "batched": Shape(3, tile // 2 + 1, 48, depth),
    }


def refused(kernel: MatmulKernel, shape: Shape) -> str:
    """Reason why a kernel does not support a shape on the current GPU; empty if it does."""
    try:
        kernel.require("cuda", shape)
    except UnsupportedError as reason:
        return str(reason)
    return ""
