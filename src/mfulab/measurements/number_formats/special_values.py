"""Bits of a format's special values, the digits that its numbers need, and where a plain sigmoid leaves its range."""

import torch

from mfulab.measurements.number_formats.rounding import NumberFormat, bias, exponent_bits, mantissa_bits

MOST_DIGITS = 20


def round_trip_digits(form: NumberFormat, values: torch.Tensor) -> int:
    """Fewest significant decimal digits from which each of `values` is read back: 17 for fp64, as in `.17g`."""
    plain = values.flatten().tolist()
    for digits in range(1, MOST_DIGITS):
        read = torch.tensor([float(f"{value:.{digits}g}") for value in plain], dtype=torch.float64)
        if bool((form.round(read) == values.flatten()).all()):
            return digits
    return MOST_DIGITS


def sigmoid_fails_at(form: NumberFormat) -> int | None:
    """The first whole x at which exp(x) / (1 + exp(x)) is no number: exp leaves the range, and ∞ ÷ ∞ is none.

    None if it never does: fp8 saturates, as torch converts to it.
    """
    x = torch.arange(1, 1000, dtype=torch.float64)
    raised = form.round(torch.exp(x))
    failed = x[~torch.isfinite(form.round(raised / form.round(1 + raised)))]
    return int(failed[0]) if len(failed) else None


def special_values(form: NumberFormat) -> dict[str, str]:
    """Bits of special values as `sign exponent mantissa`; without those that the format lacks.

    fp8 (E4M3) has no infinities and one NaN of each sign: OCP 8-bit floating point, 2023, section 5.
    """
    exponent, mantissa = exponent_bits(form), mantissa_bits(form)
    ones, zeros, nothing = "1" * exponent, "0" * exponent, "0" * mantissa
    regular = form.name != "fp8"
    top = f"{'1' * (exponent - 1)}0 {'1' * mantissa}" if regular else f"{ones} {'1' * (mantissa - 1)}0"
    found = {
        "+0": f"0 {zeros} {nothing}",
        "-0": f"1 {zeros} {nothing}",
        "smallest_subnormal": f"0 {zeros} {'0' * (mantissa - 1)}1",
        "smallest_normal": f"0 {'0' * (exponent - 1)}1 {nothing}",
        "1": f"0 {bias(form):0{exponent}b} {nothing}",
        "largest": f"0 {top}",
    }
    if not regular:
        return found | {"quiet_nan": f"0 {ones} {'1' * mantissa}"}
    return found | {
        "+inf": f"0 {ones} {nothing}",
        "-inf": f"1 {ones} {nothing}",
        "quiet_nan": f"0 {ones} 1{'0' * (mantissa - 1)}",
        "signalling_nan": f"0 {ones} {'0' * (mantissa - 1)}1",
    }


def nan_patterns(form: NumberFormat) -> int:
    """Patterns of bits that are no number."""
    return 2 if form.name == "fp8" else 2 * (2 ** mantissa_bits(form) - 1)


def across_binades(form: NumberFormat, count: int, seed: int) -> torch.Tensor:
    """[count] normal numbers of the format, their exponents uniform over what both it and decimal text hold."""
    generator = torch.Generator().manual_seed(seed)
    low, high = max(2 - bias(form), -1000), min(bias(form) - 1, 1000)
    exponents = torch.randint(low, high, (count,), generator=generator).to(torch.float64)
    return form.round((1 + torch.rand(count, generator=generator, dtype=torch.float64)) * torch.exp2(exponents))
