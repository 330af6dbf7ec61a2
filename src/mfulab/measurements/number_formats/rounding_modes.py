"""Rounding in all five directions of IEEE 754, compensated sums, bits of special values, tolerances
and gradients."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from mfulab.measurements.number_formats.rounding import (
    NumberFormat,
    bias,
    epsilon,
    exponent_bits,
    mantissa_bits,
    smallest_subnormal,
)

MODES = ("nearest_even", "nearest_away", "toward_zero", "up", "down")
"""IEEE 754-2019, section 4.3: roundTiesToEven, roundTiesToAway, roundTowardZero, roundTowardPositive, …Negative."""
MOST_DIGITS = 20
ABSOLUTE = 1e-8  # the default of numpy.isclose and torch.isclose
OFF = 8  # units in the last place of a result that is called wrong
DIFFERENCE = 1e-6  # the step of torch.autograd.gradcheck
NATIVE = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 sum and what it lost: a + b = sum + lost exactly, by Knuth's TwoSum (1969)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def rounded(form: NumberFormat, total: torch.Tensor, lost: torch.Tensor, mode: str) -> torch.Tensor:
    """total + lost, a sum that float64 may not hold, rounded in one of MODES. `lost` is less than
    half of float64's spacing at `total`, and the sum within the format's range."""
    nearest = form.round(total)
    excess = (total - nearest) + lost  # exact: the two are within a spacing of each other
    mantissa, exponent = torch.frexp(nearest)
    smallest = smallest_subnormal(form)
    step = torch.exp2(
        torch.clamp(exponent.double() - 1 - mantissa_bits(form), min=math.log2(smallest))
    )
    # Just below a power of two the spacing is half of that above it.
    inner = torch.where(mantissa.abs() == 0.5, step / 2, step).clamp(min=smallest)
    upwards = torch.where(nearest >= 0, step, inner)
    downwards = torch.where(nearest > 0, inner, step)
    above = torch.where(excess > 0, nearest + upwards, nearest)
    below = torch.where(excess < 0, nearest - downwards, nearest)
    if mode in ("up", "down"):
        return above if mode == "up" else below
    positive = nearest + excess >= 0
    if mode == "toward_zero":
        return torch.where(positive, below, above)
    gap = torch.where(excess > 0, upwards, downwards)
    if mode == "nearest_away":
        return torch.where(2 * excess.abs() >= gap, torch.where(positive, above, below), nearest)
    # float64 rounded first: where that made a tie of what was none, the part it lost decides.
    return torch.where(2 * excess.abs() > gap, torch.where(excess > 0, above, below), nearest)


def sums(
    form: NumberFormat, values: torch.Tensor, modes: Sequence[str] = MODES
) -> dict[str, torch.Tensor]:
    """Sums one after the other, rounded each time in each of `modes`; values[trials, length] →
    [trials]."""
    totals = {mode: torch.zeros(len(values), dtype=torch.float64) for mode in modes}
    for column in values.T:
        totals = {
            mode: rounded(form, *two_sum(total, column), mode) for mode, total in totals.items()
        }
    return totals


def neumaier_sum(form: NumberFormat, values: torch.Tensor) -> torch.Tensor:
    """Sums as Kahan with the larger of both as base of the correction, added at the end (Neumaier,
    1974)."""
    total = torch.zeros(len(values), dtype=torch.float64)
    lost = torch.zeros_like(total)
    for column in values.T:
        raised = form.round(total + column)
        larger = total.abs() >= column.abs()
        big = torch.where(larger, total, column)
        small = torch.where(larger, column, total)
        lost = form.round(lost + form.round(form.round(big - raised) + small))
        total = raised
    return form.round(total + lost)


def not_associative_percent(form: NumberFormat, values: torch.Tensor) -> float:
    """Share of neighbouring triples of which (a + b) + c is not a + (b + c); values[trials,
    length]."""
    a, b, c = (values[:, start:-2:3][:, : (values.shape[1] - 2) // 3] for start in range(3))
    left = form.round(form.round(a + b) + c)
    right = form.round(a + form.round(b + c))
    return 100 * float((left != right).to(torch.float64).mean())


def tenths(form: NumberFormat) -> tuple[float, float]:
    """(0.1 + 0.2) + 0.3 and 0.1 + (0.2 + 0.3): the same triple, grouped from the left and from the
    right."""
    first = form.of(0.1)
    second = form.of(0.2)
    third = form.of(0.3)
    return form.of(form.of(first + second) + third), form.of(first + form.of(second + third))


def round_trip_digits(form: NumberFormat, values: torch.Tensor) -> int:
    """Fewest significant decimal digits from which each of `values` is read back: 17 for fp64, as
    in `.17g`."""
    plain = values.flatten().tolist()
    for digits in range(1, MOST_DIGITS):
        read = torch.tensor([float(f"{value:.{digits}g}") for value in plain], dtype=torch.float64)
        if bool((form.round(read) == values.flatten()).all()):
            return digits
    return MOST_DIGITS


def sigmoid_fails_at(form: NumberFormat) -> int | None:
    """First whole x at which exp(x) / (1 + exp(x)) is ∞ ÷ ∞; None if it never is, as fp8
    saturates."""
    x = torch.arange(1, 1000, dtype=torch.float64)
    failed = x[~torch.isfinite(sigmoid(form, x, stable=False))]
    return int(failed[0]) if len(failed) else None


def sigmoid(form: NumberFormat, x: torch.Tensor, stable: bool) -> torch.Tensor:
    """The logistic function, each operation rounded to the format: exp(x) / (1 + exp(x)), or its
    stable form."""
    if not stable:
        raised = form.round(torch.exp(x))
        return form.round(raised / form.round(1 + raised))
    small = form.round(torch.exp(-x.abs()))
    below = form.round(small / form.round(1 + small))
    return torch.where(x >= 0, form.round(1 / form.round(1 + small)), below)


def special_values(form: NumberFormat) -> dict[str, str]:
    """Bits of special values as `sign exponent mantissa`; fp8 (E4M3) has no infinities, one NaN:
    OCP, 2023, section
    5."""
    exponent = exponent_bits(form)
    mantissa = mantissa_bits(form)
    ones = "1" * exponent
    zeros = "0" * exponent
    nothing = "0" * mantissa
    regular = form.name != "fp8"
    top = (
        f"{'1' * (exponent - 1)}0 {'1' * mantissa}"
        if regular
        else f"{ones} {'1' * (mantissa - 1)}0"
    )
    patterns = {
        "+0": f"0 {zeros} {nothing}",
        "-0": f"1 {zeros} {nothing}",
        "smallest_subnormal": f"0 {zeros} {'0' * (mantissa - 1)}1",
        "smallest_normal": f"0 {'0' * (exponent - 1)}1 {nothing}",
        "1": f"0 {bias(form):0{exponent}b} {nothing}",
        "largest": f"0 {top}",
    }
    if not regular:
        return patterns | {"quiet_nan": f"0 {ones} {'1' * mantissa}"}
    return patterns | {
        "+inf": f"0 {ones} {nothing}",
        "-inf": f"1 {ones} {nothing}",
        "quiet_nan": f"0 {ones} 1{'0' * (mantissa - 1)}",
        "signalling_nan": f"0 {ones} {'0' * (mantissa - 1)}1",
    }


def nan_patterns(form: NumberFormat) -> int:
    """Patterns of bits that are no number."""
    if form.name == "fp8":
        return 2
    return 2 * (2 ** mantissa_bits(form) - 1)


def across_binades(form: NumberFormat, count: int, seed: int) -> torch.Tensor:
    """[count] normal numbers of the format, their exponents uniform over what both it and decimal
    text hold."""
    generator = torch.Generator().manual_seed(seed)
    low = max(2 - bias(form), -1000)
    high = min(bias(form) - 1, 1000)
    exponents = torch.randint(low, high, (count,), generator=generator).to(torch.float64)
    return form.round(
        (1 + torch.rand(count, generator=generator, dtype=torch.float64)) * torch.exp2(exponents)
    )


def tolerances(form: NumberFormat, values: torch.Tensor) -> dict[str, float]:
    """The least relative tolerance for x · 1.5 / 1.5, and what 1e-8 refuses, or accepts of results
    eight last places off."""
    right = form.round(form.round(values * 1.5) / 1.5)
    wrong = form.round(values * (1 + OFF * epsilon(form)))
    off = (right - values).abs()
    differs = wrong != values
    return {
        "relative_tolerance": float((off / values.abs()).max()),
        "absolute_refuses_percent": 100 * float((off > ABSOLUTE).double().mean()),
        "absolute_accepts_percent": 100
        * float(((wrong - values).abs()[differs] <= ABSOLUTE).double().mean()),
    }


class StableSigmoid(torch.autograd.Function):
    """The logistic function in the form that never overflows, with its derivative s·(1 − s) given
    by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """1 / (1 + exp(−x)) from 0 on, exp(x) / (1 + exp(x)) below it."""
        small = torch.exp(-x.abs())
        result = torch.where(x >= 0, 1 / (1 + small), small / (1 + small))
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """The gradient times s·(1 − s)."""
        (result,) = ctx.saved_tensors
        return gradient * result * (1 - result)


def gradcheck_passes(form: NumberFormat) -> bool | None:
    """Result of torch.autograd.gradcheck of StableSigmoid in the format; None if torch does not
    compute in it."""
    if form.name not in NATIVE:
        return None
    x = torch.linspace(-4, 4, 9, dtype=NATIVE[form.name], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of all formats but fp64, which is the point
        return torch.autograd.gradcheck(
            StableSigmoid.apply, (x,), eps=DIFFERENCE, raise_exception=False
        )


def difference_error(form: NumberFormat, x: torch.Tensor) -> float:
    """Median relative error of (σ(x + h) − σ(x − h)) / 2h with gradcheck's h, each operation
    rounded."""
    step = form.of(DIFFERENCE)
    high, low = (sigmoid(form, form.round(x + shift), stable=True) for shift in (step, -step))
    exact = torch.sigmoid(x) * torch.sigmoid(-x)
    rise = form.round(high - low)
    slope = form.round(rise / form.of(2 * step)) if step else torch.zeros_like(rise)
    return float(((slope - exact).abs() / exact).median())
