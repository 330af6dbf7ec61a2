"""Arithmetic of shares: FLOPs or bytes ÷ time ÷ peak, in one place for tables, loops and
validation. None is "not measured" and makes every value that needs it None. Ratios are never
clipped at 100."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mfulab.core.parts import drop_none
from mfulab.device import GPU
from mfulab.mfu.step import Known

TERA = 1e12
GIGA = 1e9


def product(*factors: Known) -> Known:
    """Product of the factors; None if one was not measured."""
    result: float = 1
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result


def total(*terms: Known) -> Known:
    """Sum of the terms; None if one was not measured."""
    if any(term is None for term in terms):
        return None
    return sum(drop_none(terms))


def ratio(numerator: Known, denominator: Known) -> Known:
    """numerator ÷ denominator; None if one was not measured, or if the denominator is not
    positive."""
    if numerator is None or denominator is None or not denominator > 0:
        return None
    return numerator / denominator


def tflop_s(flops: Known, seconds: Known) -> Known:
    """FLOPs ÷ seconds in TFLOP/s; None as in `ratio`."""
    return ratio(ratio(flops, seconds), TERA)


def percent(part: Known, whole: Known) -> Known:
    """100 · part ÷ whole, above 100 if the part is larger; None as in `ratio`."""
    return product(100, ratio(part, whole))


def of_peak(flops: Known, seconds: Known, peak_tflop_s: Known) -> Known:
    """FLOPs ÷ seconds ÷ peak in percent: MFU for the FLOPs that a model needs, HFU for those that
    ran (Chowdhery et al. 2022, PaLM, appendix B). None as in `ratio`. Every MFU is computed
    here."""
    return percent(tflop_s(flops, seconds), peak_tflop_s)


@dataclass(frozen=True)
class Roof:
    """Times (s) in which a device computes an operation's FLOPs, and moves its bytes."""

    compute_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        """Least time of the operation."""
        return max(self.compute_s, self.memory_s)

    @property
    def by_compute(self) -> bool:
        """True if FLOPs decide the least time, not bytes."""
        return self.compute_s >= self.memory_s


def roof(flops: float, peak_flop_s: float, moved_bytes: float, bytes_s: float) -> Roof:
    """Roofline of work in one number format: FLOPs ÷ peak and bytes ÷ bandwidth (Williams et al.
    2009, doi:10.1145/1498765.1498785)."""
    return Roof(flops / peak_flop_s, moved_bytes / bytes_s)


def weights(flops: Mapping[str, float]) -> str | None:
    """JSON of each key's share of the FLOPs; None if there are no FLOPs."""
    whole = sum(flops.values())
    if not whole:
        return None
    return json.dumps({name: round(count / whole, 4) for name, count in flops.items()})


Measure = Sequence[Known]  # (value, low, high)


def quotient_interval(
    value: Known, numerators: Sequence[Measure] = (), denominators: Sequence[Measure] = ()
) -> tuple[Known, Known]:
    """95 % confidence interval of a quotient of independent measures: relative half-widths add as
    squares. A measure without an interval counts as exact. None if all of them do, or if the value
    is None."""
    below = list[Known]()
    above = list[Known]()
    for measure in numerators:
        below.append(_width(measure, 1))
        above.append(_width(measure, 2))
    for measure in denominators:
        below.append(_width(measure, 2))
        above.append(_width(measure, 1))
    if value is None or not any(below):
        return None, None
    low = value * math.exp(-math.hypot(*drop_none(below)))
    return low, value * math.exp(math.hypot(*drop_none(above)))


def _width(measure: Measure, bound: int) -> Known:
    """Absolute logarithm of a bound ÷ the value; None unless both are positive."""
    value = measure[0]
    end = measure[bound]
    if value and end and value > 0 and end > 0:
        return abs(math.log(end / value))
    return None


def default_basis(device: str | None) -> str:
    """Default denominator of MFU: `spec` on a GPU with datasheets, `measured` on a CPU, which hides
    turbo clocks, and on Apple's GPUs."""
    if device == GPU:
        return "spec"
    return "measured"
