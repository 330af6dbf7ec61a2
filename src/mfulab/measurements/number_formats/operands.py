"""Error of a matmul that comes from rounding its operands to a format. Computed without torch,
whose import would take longer than the rest of the page."""

import functools
import math
from statistics import NormalDist

import numpy as np

from mfulab.core.formats import FORMATS, Format

SAMPLE = 1 << 18  # values to draw, enough to know the error to less than 1 %
LARGEST_INT8 = 127


def largest_normal(count: int) -> float:
    """Median of the largest magnitude among `count` standard normal values."""
    return NormalDist().inv_cdf((1 + 0.5 ** (1 / count)) / 2)


def quantised(values: np.ndarray, form: Format, scale: float) -> np.ndarray:
    """Rounds float64 values to a format, with ties to even. Integer formats hold multiples of one
    `scale` for all values, clipped to ±127. Floating values beyond the format's range are not
    clipped."""
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
    """Relative error ‖Q(X)−X‖F / ‖X‖F of rounding a standard normal matrix X to the format `name`.
    0 for fp64, in which values are drawn. TF32 operands are stored in float32: bits that its units
    drop count as error of the matmul."""
    form = FORMATS[name]
    values = np.random.default_rng(0).standard_normal(SAMPLE)
    scale = largest_normal(rows * columns) / LARGEST_INT8
    lost = quantised(values, form, scale) - values
    return float(np.linalg.norm(lost) / np.linalg.norm(values))


def product_error(name: str, m: int, n: int, k: int, relative_error: float) -> float:
    """Relative error ‖C−AB‖F / ‖AB‖F of a matmul with respect to unrounded operands.
    `relative_error` is its error with respect to rounded ones. Errors of A, B and the matmul are
    independent, so their squares add up."""
    operands = (operand_error(name, m, k), operand_error(name, k, n))
    return math.hypot(*operands, relative_error)
