"""Probes one number format: its parts, and what rounding does to sums, differences and dot products
in it."""

import json
import math
from pathlib import Path

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.core.said import Said
from mfulab.measurements.number_formats import NumberFormatsConfig, NumberFormatsRow, rounding
from mfulab.measurements.number_formats import rounding_modes as modes

SCATTERED = 2000  # numbers that are written as text and read back
# Columns that are called as the functions that give them.
PARTS = (
    *(rounding.exponent_bits, rounding.mantissa_bits, rounding.bias, rounding.epsilon),
    *(rounding.largest, rounding.smallest_normal, rounding.smallest_subnormal),
)


def measure(config: NumberFormatsConfig, folder: Path) -> Measured:
    """A row with the format's parts and errors; needs no device."""
    name = config.precision.form.name
    if name not in rounding.ROUNDED:
        raise UnsupportedError(Said("no_float_format", {"name": name}))
    form = rounding.ROUNDED[name]
    length = min(config.sum_length, int(rounding.largest(form)))
    values = rounding.terms(form, length, config.seed)
    squared, factored = rounding.difference_of_squares(form, config.seed)
    scattered = modes.across_binades(form, SCATTERED, config.seed)
    from_left, from_right = modes.tenths(form)
    row = NumberFormatsRow.of(
        config,
        bits=form.bits,
        **{part.__name__: part(form) for part in PARTS},
        tenths_add_up=form.of(form.of(0.1) + form.of(0.2)) == form.of(0.3),
        last_counted=rounding.last_counted(form),
        sum_length=length,
        **_sum_errors(form, values),
        not_associative_percent=modes.not_associative_percent(form, values),
        tenths_from_left=from_left,
        tenths_from_right=from_right,
        round_trip_digits=modes.round_trip_digits(form, scattered),
        sigmoid_fails_at=modes.sigmoid_fails_at(form),
        stable_sigmoid_error=_stable_sigmoid_error(form),
        **modes.tolerances(form, scattered),
        gradient_difference_error=modes.difference_error(
            form, form.round(torch.linspace(-4, 4, 9).double())
        ),
        gradcheck_passes=modes.gradcheck_passes(form),
        special_values=json.dumps(modes.special_values(form)),
        nan_patterns=modes.nan_patterns(form),
        squares_difference_error=squared,
        factored_difference_error=factored,
        **_dot_errors(form, length, config.seed),
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
        "neumaier": modes.neumaier_sum(form, values),
        **modes.sums(form, values, modes.MODES[1:]),  # nearest_even is naive
    }
    return {f"{name}_sum_error": _error(total, exact) for name, total in sums.items()}


def _stable_sigmoid_error(form: rounding.NumberFormat) -> float:
    """Largest relative error of the stable sigmoid between -8 and 8."""
    steps = form.round(torch.linspace(-8, 8, 129, dtype=torch.float64))
    exact = torch.sigmoid(steps)
    stable = modes.sigmoid(form, steps, stable=True)
    return float(((stable - exact).abs() / exact).max())


def _dot_errors(form: rounding.NumberFormat, length: int, seed: int) -> dict[str, float | None]:
    x, y = (rounding.terms(form, length, seed + step) for step in (1, 2))
    exact = rounding.exact_sum(x * y)
    sums = {"own": form, "fp16": rounding.ROUNDED["fp16"], "fp32": rounding.ROUNDED["fp32"]}
    return {
        f"dot_error_{name}": _error(rounding.dot(form, kept, x, y), exact)
        for name, kept in sums.items()
    }


def _error(computed: torch.Tensor, exact: torch.Tensor) -> float | None:
    """Relative error; None if a sum left the range of the format, as an overflow has none."""
    error = rounding.relative_error(computed, exact)
    return error if math.isfinite(error) else None
