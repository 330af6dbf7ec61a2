"""Probes one number format: its parts, and what rounding does to sums, differences and dot products in it."""

import json
import math
from pathlib import Path

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.kernels.formats import format_of
from mfulab.measurements.number_formats import NumberFormatsConfig, NumberFormatsRow, rounding, special_values

SCATTERED = 2000  # numbers that are written as text and read back


def measure(config: NumberFormatsConfig, folder: Path) -> Measured:
    """A row with the format's parts and errors; needs no device."""
    name = format_of(config.precision).name
    if name not in rounding.ROUNDED:
        raise UnsupportedError(f"{name} is no floating-point format")
    form = rounding.ROUNDED[name]
    length = min(config.sum_length, int(rounding.largest(form)))
    values = rounding.terms(form, length, config.seed)
    exact = rounding.exact_sum(values)
    ascending = values.sort(dim=1).values
    squared, factored = rounding.difference_of_squares(form, config.seed)
    scattered = special_values.across_binades(form, SCATTERED, config.seed)
    x, y = (rounding.terms(form, length, config.seed + step) for step in (1, 2))
    accumulators = {"own": form, "fp16": rounding.ROUNDED["fp16"], "fp32": rounding.ROUNDED["fp32"]}
    row = NumberFormatsRow.of(
        config,
        bits=form.bits,
        exponent_bits=rounding.exponent_bits(form),
        mantissa_bits=rounding.mantissa_bits(form),
        bias=rounding.bias(form),
        epsilon=rounding.epsilon(form),
        largest=rounding.largest(form),
        smallest_normal=rounding.smallest_normal(form),
        smallest_subnormal=rounding.smallest_subnormal(form),
        tenths_add_up=form.of(form.of(0.1) + form.of(0.2)) == form.of(0.3),
        last_counted=rounding.last_counted(form),
        sum_length=length,
        naive_sum_error=_error(rounding.naive_sum(form, values), exact),
        ascending_sum_error=_error(rounding.naive_sum(form, ascending), exact),
        descending_sum_error=_error(rounding.naive_sum(form, ascending.flip(1)), exact),
        pairwise_sum_error=_error(rounding.pairwise_sum(form, values), exact),
        kahan_sum_error=_error(rounding.kahan_sum(form, values), exact),
        round_trip_digits=special_values.round_trip_digits(form, scattered),
        sigmoid_fails_at=special_values.sigmoid_fails_at(form),
        special_values=json.dumps(special_values.special_values(form)),
        nan_patterns=special_values.nan_patterns(form),
        squares_difference_error=squared,
        factored_difference_error=factored,
        **{
            f"dot_error_{label}": _error(rounding.dot(form, accumulator, x, y), rounding.exact_sum(x * y))
            for label, accumulator in accumulators.items()
        },
    )
    return Measured(row)


def _error(computed: torch.Tensor, exact: torch.Tensor) -> float | None:
    """None if a sum left the range of the format: an overflow has no relative error."""
    error = rounding.relative_error(computed, exact)
    return error if math.isfinite(error) else None
