"""Probes one number format: its parameters, and rounding errors of sums and differences in it."""

import math
from pathlib import Path

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.core.said import Said
from mfulab.measurements.number_formats import NumberFormatsConfig, NumberFormatsRow, rounding
from mfulab.measurements.number_formats import rounding_modes as modes

SCATTERED = 2000  # numbers that are multiplied and divided back
# Functions that fill the column of their name.
PARTS = (
    *(rounding.exponent_bits, rounding.mantissa_bits, rounding.bias, rounding.epsilon),
    *(rounding.largest, rounding.smallest_normal, rounding.smallest_subnormal),
)


def measure(config: NumberFormatsConfig, folder: Path) -> Measured:
    """Returns one row with the format's parts and rounding errors. Needs no device."""
    name = config.precision.form.name
    if name not in rounding.ROUNDED:
        raise UnsupportedError(Said("no_float_format", name=name))
    form = rounding.ROUNDED[name]
    length = min(config.sum_length, int(rounding.largest(form)))
    values = rounding.terms(form, length, config.seed)
    squared_error, factored_error = rounding.difference_of_squares(form, config.seed)
    scattered = modes.across_binades(form, SCATTERED, config.seed)
    row = NumberFormatsRow.of(
        config,
        bits=form.bits,
        **{part.__name__: part(form) for part in PARTS},
        tenths_add_up=form.of(form.of(0.1) + form.of(0.2)) == form.of(0.3),
        sum_length=length,
        **_sum_errors(form, values),
        relative_tolerance=modes.relative_tolerance(form, scattered),
        squares_difference_error=squared_error,
        factored_difference_error=factored_error,
    )
    return Measured(row)


def _sum_errors(form: rounding.NumberFormat, values: torch.Tensor) -> dict[str, float | None]:
    exact = rounding.exact_sum(values)
    ascending = values.sort(dim=1).values
    sums = {
        "naive": rounding.naive_sum(form, values),
        "ascending": rounding.naive_sum(form, ascending),
        "descending": rounding.naive_sum(form, ascending.flip(1)),
        "pairwise": rounding.pairwise_sum(form, values),
        "kahan": rounding.kahan_sum(form, values),
        **modes.sums(form, values),
    }
    return {f"{name}_sum_error": _error(total, exact) for name, total in sums.items()}


def _error(computed: torch.Tensor, exact: torch.Tensor) -> float | None:
    """Relative error, or None if a sum overflowed the format."""
    error = rounding.relative_error(computed, exact)
    return error if math.isfinite(error) else None
