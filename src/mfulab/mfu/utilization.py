"""MFU, HFU and MBU: FLOPs or bytes ÷ time ÷ peak, in one function for tables, your own loop and validation. None is
"not measured" and makes every value that needs it None. Ratios are never clipped at 100."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mfulab.device import GPU

TERA, GIGA = 1e12, 1e9
Known = float | None  # None is "not measured"
CEILING = ("measured_tflop_s", "measured_ci_low_tflop_s", "measured_ci_high_tflop_s")


def product(*factors: float | None) -> float | None:
    """The product, or None if a factor was not measured."""
    result: float = 1
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result


def total(*terms: float | None) -> float | None:
    """The sum, or None if a term was not measured."""
    return None if any(term is None for term in terms) else sum(term for term in terms if term is not None)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """numerator ÷ denominator, or None if one was not measured or the denominator is not positive."""
    if numerator is None or denominator is None or not denominator > 0:
        return None
    return numerator / denominator


def tflop_s(flops: float | None, seconds: float | None) -> float | None:
    """FLOPs ÷ seconds in TFLOP/s, or None as in `ratio`."""
    return ratio(ratio(flops, seconds), TERA)


def percent(part: float | None, whole: float | None) -> float | None:
    """100 · part ÷ whole; above 100 if the part is larger, on purpose."""
    return product(100, ratio(part, whole))


def of_peak(flops: float | None, seconds: float | None, peak_tflop_s: float | None) -> float | None:
    """FLOPs ÷ seconds ÷ peak in percent: MFU of the FLOPs that a model needs, HFU of those that ran (Chowdhery et al.
    2022, PaLM, appendix B); None as in `ratio`. Every MFU is formed here."""
    return percent(tflop_s(flops, seconds), peak_tflop_s)


Measure = Sequence[float | None]  # (value, low, high)


def quotient_interval(
    value: float | None, numerators: Sequence[Measure] = (), denominators: Sequence[Measure] = ()
) -> tuple[float | None, float | None]:
    """The 95 % confidence interval of a quotient of independent measures: relative half-widths add as squares. A
    measure without an interval counts as exact; None if all do, or without a value."""
    low = [*(_width(term, 1) for term in numerators), *(_width(term, 2) for term in denominators)]
    high = [*(_width(term, 2) for term in numerators), *(_width(term, 1) for term in denominators)]
    if value is None or not any(low):
        return None, None
    below, above = (math.hypot(*(width or 0.0 for width in widths)) for widths in (low, high))
    return value * math.exp(-below), value * math.exp(above)


def _width(measure: Measure, bound: int) -> float | None:
    """The logarithm of a bound ÷ the value, without its sign; None without both."""
    value, end = measure[0], measure[bound]
    return abs(math.log(end / value)) if value and end and value > 0 and end > 0 else None


def default_basis(device: str | None) -> str:
    """`spec` on a GPU with datasheets; `measured` on a CPU, which hides turbo clocks, and on Apple's GPUs."""
    return "spec" if device == GPU else "measured"


def utilization(
    time_s: Known, *, device: str | None, flops: Known, executed_flops: Known = None, causal_flops: Known = None,
    read_bytes: Known = None, interval_s: tuple[Known, Known] = (None, None), clock_mhz: Known = None,
    compute: Mapping[str, Any], memory: Mapping[str, Any], executed_compute: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """MFU by every denominator, HFU and MBU of one step, in percent, as columns of the profile table. MFU and HFU are
    as in `of_peak`. MBU is bytes of parameters and key-value cache ÷ time ÷ memory bandwidth (Agarwal et al. 2023, "LLM
    Inference Performance Engineering: Best Practices", Databricks): a pass reads each parameter at least once.
    `device` decides the default denominator. MFU's interval is of `interval_s`, in seconds, and of a measured ceiling.
    `causal_flops` halve causal attention, `executed_flops` are what ran. `read_bytes` are parameters and key-value
    cache; None for training. With `clock_mhz`, the mean during the step, the peak at the actual clock scales. `compute`
    is the ceilings row of the effective precision, in TFLOP/s, `memory` that of bandwidth, in GB/s; `executed_compute`
    stands under HFU where what was executed has another mixture of formats."""
    denominators = _denominators(compute, clock_mhz)
    basis = default_basis(device)
    executed_peak = _denominators(compute if executed_compute is None else executed_compute, clock_mhz)[basis]
    peak_tflop_s = denominators[basis]
    bandwidth = memory.get("computed_gb_s" if basis == "spec" else "measured_gb_s")
    low_s, high_s = interval_s
    measured = [compute.get(name) for name in CEILING] if basis == "measured" else [peak_tflop_s, None, None]
    bounds = quotient_interval(of_peak(flops, time_s, peak_tflop_s), denominators=[(time_s, low_s, high_s), measured])
    return {
        "tflop_s": tflop_s(flops, time_s),
        **{f"mfu_{name}_percent": of_peak(flops, time_s, peak) for name, peak in denominators.items()},
        "mfu_percent": of_peak(flops, time_s, peak_tflop_s),
        "mfu_basis": basis if peak_tflop_s is not None else None,
        "mfu_ci_low_percent": bounds[0],
        "mfu_ci_high_percent": bounds[1],
        "mfu_causal_percent": of_peak(causal_flops, time_s, peak_tflop_s),
        "hfu_percent": of_peak(executed_flops, time_s, executed_peak),
        "mbu_percent": percent(ratio(ratio(read_bytes, time_s), GIGA), bandwidth),
    }


def _denominators(compute: Mapping[str, Any], clock_mhz: float | None) -> dict[str, float | None]:
    spec = compute.get("computed_tflop_s")
    return {
        "spec": spec,
        "max_clock": compute.get("max_clock_tflop_s"),
        "actual_clock": product(spec, ratio(clock_mhz, compute.get("computed_clock_mhz"))),
        "measured": compute.get("measured_tflop_s"),
    }
