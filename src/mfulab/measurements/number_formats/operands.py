"""Errors that rounding the operands to a format gives a matmul, before the first product. Computed
without torch, whose import takes longer than the page's own work."""

import functools
import math
from statistics import NormalDist

import numpy as np

from mfulab.core.formats import FORMATS, Format

SAMPLE = 1 << 18  # values drawn: the error is then known to less than 1 %
LARGEST_INT8 = 127


def largest_normal(count: int) -> float:
    """Median of the largest magnitude among `count` standard normal values."""
    return NormalDist().inv_cdf((1 + 0.5 ** (1 / count)) / 2)


def quantised(values: np.ndarray, form: Format, scale: float) -> np.ndarray:
    """float64 values as the format holds them, ties to even; integers are multiples of `scale`, one
    for all. A value beyond the format's range is not cut."""
    if not form.is_floating:
        steps = np.rint(values / scale)
        return np.clip(steps, -LARGEST_INT8, LARGEST_INT8) * scale
    stored = FORMATS["fp32"] if form.name == "tf32" else form
    fraction_bits = stored.bits - 1 - stored.exponent_bits
    smallest = 2 - (1 << stored.exponent_bits - 1)  # exponent of the smallest normal number
    exponents = np.frexp(values)[1] - 1
    last_place = np.maximum(exponents, smallest) - fraction_bits
    return np.ldexp(np.rint(np.ldexp(values, -last_place)), last_place)


@functools.cache
def operand_error(name: str, rows: int, columns: int) -> float:
    """‖Q(X)−X‖F / ‖X‖F for a standard normal matrix; 0 for fp64, in which values are drawn.
    TF32's operands are float32: what its units drop belongs to the product."""
    form = FORMATS[name]
    values = np.random.default_rng(0).standard_normal(SAMPLE)
    scale = largest_normal(rows * columns) / LARGEST_INT8
    lost = quantised(values, form, scale) - values
    return float(np.linalg.norm(lost) / np.linalg.norm(values))


def product_error(name: str, m: int, n: int, k: int, relative_error: float) -> float:
    """‖C−AB‖F / ‖AB‖F against unrounded operands, from a product's error against rounded ones.
    Errors of A, of B and of the product are independent: their squares add up."""
    operands = (operand_error(name, m, k), operand_error(name, k, n))
    return math.hypot(*operands, relative_error)
