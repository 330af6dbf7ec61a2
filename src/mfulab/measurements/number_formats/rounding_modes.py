"""Sums rounded in the three directed modes of IEEE 754, and the tolerance that comparisons need
because of rounding."""

import math

import torch

from mfulab.measurements.number_formats.rounding import (
    NumberFormat,
    bias,
    mantissa_bits,
    smallest_subnormal,
)

MODES = ("toward_zero", "up", "down")
"""IEEE 754-2019, section 4.3: roundTowardZero, roundTowardPositive, roundTowardNegative."""


def two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the float64 sum and its rounding error, so that a + b = sum + lost exactly (Knuth's
    TwoSum, 1969)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def rounded(form: NumberFormat, total: torch.Tensor, lost: torch.Tensor, mode: str) -> torch.Tensor:
    """Rounds the exact sum total + lost to the format, in one of MODES. `lost` must be less than
    half of float64's spacing at `total`, and the sum within the format's range."""
    nearest = form.round(total)
    excess = (total - nearest) + lost  # exact, as the two are within a spacing of each other
    mantissa, exponent = torch.frexp(nearest)
    smallest = smallest_subnormal(form)
    last_place = exponent.double() - 1 - mantissa_bits(form)
    step = torch.exp2(torch.clamp(last_place, min=math.log2(smallest)))
    # The spacing just below a power of two is half of that above it.
    inner = torch.where(mantissa.abs() == 0.5, step / 2, step).clamp(min=smallest)
    upwards = torch.where(nearest >= 0, step, inner)
    downwards = torch.where(nearest > 0, inner, step)
    above = torch.where(excess > 0, nearest + upwards, nearest)
    below = torch.where(excess < 0, nearest - downwards, nearest)
    if mode == "up":
        return above
    if mode == "down":
        return below
    return torch.where(nearest + excess >= 0, below, above)


def sums(form: NumberFormat, values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Adds one value after the other, rounding each time, in each of MODES; values[trials, length]
    → mode → [trials]."""
    totals = {mode: torch.zeros(len(values), dtype=torch.float64) for mode in MODES}
    for column in values.T:
        for mode in MODES:
            total, lost = two_sum(totals[mode], column)
            totals[mode] = rounded(form, total, lost, mode)
    return totals


def across_binades(form: NumberFormat, count: int, seed: int) -> torch.Tensor:
    """Draws [count] normal numbers of the format, with exponents uniform over its range, at most
    ±1000."""
    generator = torch.Generator().manual_seed(seed)
    low = max(2 - bias(form), -1000)
    high = min(bias(form) - 1, 1000)
    exponents = torch.randint(low, high, (count,), generator=generator).to(torch.float64)
    significands = 1 + torch.rand(count, generator=generator, dtype=torch.float64)
    return form.round(significands * torch.exp2(exponents))


def relative_tolerance(form: NumberFormat, values: torch.Tensor) -> float:
    """Smallest relative tolerance that accepts x · 1.5 / 1.5 as x for each of `values`."""
    result = form.round(form.round(values * 1.5) / 1.5)
    return float(((result - values).abs() / values.abs()).max())
