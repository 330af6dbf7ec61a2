"""Computes a datasheet's peak in a format as units × FMA per clock per unit × 2 × clock, for dense
matrices with fp32 accumulation. The printed figure takes precedence if the two differ by more than
1 % and by more than rounding."""

from __future__ import annotations

from .facts import Datasheet, table

# Formats for which a datasheet prints both a vector and a tensor figure.
BOTH = ("fp64", "fp32")
# Kinds of units that compute a format, fastest first. Tensor units run at the tensor clock, if
# the device has a separate one.
UNITS: dict[str, tuple[str, ...]] = {
    **{name: (f"{name}_tensor", name) for name in BOTH},
    **{name: (f"{name}_tensor",) for name in ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")},
}
# Largest relative difference between a printed figure and the product of its factors.
TOLERANCE = 0.01


def unit_of(sheet: Datasheet, dtype: str) -> str | None:
    """Fastest kind of unit that computes a format, such as `bf16_tensor`. None if no figure is
    known."""
    for unit in UNITS[dtype]:
        if computed(sheet, unit) or printed(sheet, unit):
            return unit
    return None


def figure(sheet: Datasheet, dtype: str) -> float | None:
    """Dense peak of the whole product in a format, in TFLOP/s (TOP/s for int8). None if unknown."""
    unit = unit_of(sheet, dtype)
    if unit is None:
        return None
    if by_formula(sheet, unit):
        return computed(sheet, unit)
    return printed(sheet, unit)


def computed(sheet: Datasheet, unit: str) -> float | None:
    """Peak of one kind of unit in TFLOP/s: units × FMA per clock per unit × 2 × clock. None if a
    factor is unknown."""
    rate = rates(sheet).get(unit)
    clock = clock_mhz(sheet, unit)
    if rate and clock and sheet.units:
        return sheet.units * int(rate) * 2e-6 * clock
    return None


def printed(sheet: Datasheet, unit: str) -> float | None:
    """Datasheet's figure for one kind of unit in TFLOP/s. None if it prints none."""
    text = sheet.figures.get(_column(unit))
    if text:
        return float(text)
    return None


def agrees(sheet: Datasheet, unit: str) -> bool:
    """True if the computed and the printed figure differ by at most 1 % or by rounding, or if one
    of them is missing."""
    product = computed(sheet, unit)
    figure = printed(sheet, unit)
    if product is None or figure is None:
        return True
    decimals = len(sheet.figures[_column(unit)].partition(".")[2])
    return abs(product - figure) <= max(TOLERANCE * figure, 0.5 * 10.0**-decimals)


def by_formula(sheet: Datasheet, unit: str) -> bool:
    """True if the computed figure is used rather than the printed one."""
    return computed(sheet, unit) is not None and agrees(sheet, unit)


def rates(sheet: Datasheet) -> dict[str, str]:
    """FMA per clock per unit of a datasheet's architecture, by kind of unit. Empty if unknown."""
    for row in table("fma_per_clock_per_unit.csv"):
        if (row["architecture"], row["rate"]) == (sheet.architecture, sheet.rate):
            return row
    return {}


def clock_mhz(sheet: Datasheet, unit: str) -> float | None:
    """Datasheet's clock in MHz for a kind of unit. None if unknown."""
    if unit.endswith("_tensor") and unit != "fp64_tensor":
        return sheet.tensor_mhz
    return sheet.boost_mhz


def sparse_factor(sheet: Datasheet, dtype: str) -> float:
    """Factor by which the vendor's figure for 2:4 sparsity exceeds the dense peak; 1 if there is
    none."""
    if dtype in BOTH:
        return 1.0
    return float(rates(sheet).get("sparse_factor") or 1)


def _column(unit: str) -> str:
    name = unit[: -len("_tensor")] if unit.endswith("_tensor") else unit
    if name in BOTH:
        return unit
    return name
