"""Peaks of what a window multiplied, weighted by FLOPs, and the best matmul, measured in the user's own process."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import DeviceConfig
from mfulab.device import is_gpu
from mfulab.device.compute import allowed_precision, emulated, matmuls_in
from mfulab.device.gpu import properties_of
from mfulab.device.local_peak import gpu_peak, peak_of
from mfulab.device.peaks import Peak
from mfulab.device.samplers.reading import first_available, sampling
from mfulab.device.samplers.selection import samplers_for
from mfulab.flops.formulas import weighted_peak_flop_s
from mfulab.loop.interactive.costs import Cost, Flops
from mfulab.mfu.verdict import OTHERS
from mfulab.timing.best_matmul import (
    CAREFUL,
    best_bandwidth,
    fastest_matmul,
    last_cache_bytes,
    sweep_matmuls,
    sweep_triad,
    triad_length,
)


class Ceiling(NamedTuple):
    """TFLOP/s of the best matmul, None without one in the format; the share of the CPUs that others took meanwhile."""

    tflop_s: float | None
    other_processes_percent: float | None = None
    other_processes: float | None = None

    @property
    def disturbed(self) -> bool:
        """True if others slowed the ceiling down, so that it reads too low, and MFU of it too high."""
        return (self.other_processes_percent or 0) >= OTHERS or (self.other_processes or 0) >= 1


_known: dict[tuple[str, str, int], Ceiling] = {}
_bandwidths: dict[torch.device, float] = {}
MOST_BYTES = 512 << 20  # of the arrays that measure a CPU's memory


def measured_ceiling(device: torch.device, precision: str, threads: int, limit_s: float, anew: bool = True) -> Ceiling:
    """The ceiling of as many threads, measured once a process; with `anew` again where others disturbed it. The best
    stays, since neighbours can only slow a matmul down."""
    key = str(device), precision, threads
    for _ in range(2):
        before = _known.get(key)
        if before is not None and not (anew and before.disturbed):
            break
        ceiling = _measure(device, precision, limit_s)
        if before is None or not ceiling.disturbed or (ceiling.tflop_s or 0) > (before.tflop_s or 0):
            _known[key] = ceiling
        if ceiling.tflop_s is None:
            break
    return _known[key]


def _measure(device: torch.device, precision: str, limit_s: float) -> Ceiling:
    try:
        with sampling(samplers_for(device)) as sampled, matmuls_in(precision):
            sweep = sweep_matmuls(precision, device, replace(CAREFUL[device.type], limit_s=limit_s))
            rate = fastest_matmul(sweep, device).tflop_s
    except UnsupportedError:
        return Ceiling(None)
    values = {name: reading.value for name, reading in first_available(sampled).items()}
    return Ceiling(rate, values.get("other_processes_percent"), values.get("other_processes"))


@dataclass(frozen=True)
class WeightedPeaks:
    """Peaks in TFLOP/s as ceilings rows, under the FLOPs that the model needs and under those executed. Beside them the
    window's columns, and why there is no computed peak."""

    model: dict[str, float | None]
    executed: dict[str, float | None]
    columns: dict[str, Any]
    reason: str
    rates: Mapping[str, float | None] = field(default_factory=dict)
    memory: float | str = "not measured"


def peaks_of(
    device: torch.device, formats: Flops, executed: Flops, given: DeviceConfig, ceiling_s: float, anew: bool = True
) -> WeightedPeaks:
    """Looks up the peak of each format in use, and measures its best matmul, sharing `ceiling_s` seconds among them.
    `formats`, which are not empty, are FLOPs that the model needs by what was multiplied. The peaks that the user has
    `given` go first; `anew` measures a ceiling again that others disturbed."""
    needed, done = by_precision(device, formats), by_precision(device, executed)
    under = {  # the format whose peak stands under each: fp32 where the device emulates it and no peak is given
        name: "fp32" if name not in given.peak_tflop_s and emulated(name, device) else name for name in (*needed, *done)
    }
    divided, divided_done = (_added((under[name], flops) for name, flops in sums.items()) for sums in (needed, done))
    names = dict.fromkeys(under.values())
    threads, each_s = torch.get_num_threads(), ceiling_s / len(names)
    computed = {name: peak_of(device, threads, name, given) for name in names}
    ceilings = {name: measured_ceiling(device, name, threads, each_s, anew) for name in names} if ceiling_s else {}
    row, whole, main = _row(divided, computed, ceilings), sum(needed.values()), max(needed, key=needed.__getitem__)
    weights = {name: round(flops / whole, 4) for name, flops in needed.items()} if whole else {}
    disturbed = [ceiling.other_processes_percent or 0.0 for ceiling in ceilings.values() if ceiling.disturbed]
    columns = {
        "effective_precision": main,
        "peak_precision": under[main],
        "peak_tflop_s": row["computed_tflop_s"],
        "peak_clock_mhz": row["computed_clock_mhz"],
        "peak_weights": json.dumps(weights) if weights else None,
        "ceiling_tflop_s": row["measured_tflop_s"],
        "ceiling_other_processes_percent": max(disturbed, default=None),
    }
    reasons = dict.fromkeys(peak.reason for name, peak in computed.items() if divided.get(name) and peak.reason)
    rates = {name: (ceilings[base].tflop_s if ceilings else 0) or computed[base].spec for name, base in under.items()}
    memory = bandwidth(device, bool(ceiling_s))
    return WeightedPeaks(row, _row(divided_done, computed, ceilings), columns, "; ".join(reasons), rates, memory)


def bandwidth(device: torch.device, measuring: bool) -> float | str:
    """Memory bandwidth in GB/s: a GPU's by its datasheet, a CPU's measured once a process; else why there is none."""
    if is_gpu(device):
        return gpu_peak(properties_of(device), "fp32").memory_gb_s or "the datasheet's memory bandwidth is not known"
    if device not in _bandwidths:
        if not measuring:
            return "memory bandwidth was not measured (ceiling_s=0)"
        if 3 * 4 * triad_length(device) > MOST_BYTES:
            return "this CPU's cache is too large to measure its memory beside a program"
        search = replace(CAREFUL[device.type], sample_s=0.02, triads=5)
        _bandwidths[device] = best_bandwidth(sweep_triad(device, search), device)
    return _bandwidths[device]


def attainable_s(cost: Cost, peaks: WeightedPeaks, device: torch.device, steps: int) -> tuple[float | None, str]:
    """Seconds of a step on the roofline of each product, or why they are unknown; all other operators fused away.

    A product takes the longer of FLOPs ÷ rate and bytes ÷ bandwidth: Williams et al. 2009, doi:10.1145/1498765.1498785.
    Where the last cache holds all that a step moves, memory takes no time.
    """
    if not cost.products:
        return None, "FLOPs were given, and their bytes are not known"
    rates = {key: peaks.rates.get(allowed_precision(key[0], device, key[1])) for key, _, _ in cost.products}
    if not all(rates.values()):
        return None, "no peak of a number format is known"
    gb_s = math.inf if cost.moved_bytes / steps <= last_cache_bytes(device) else peaks.memory
    if isinstance(gb_s, str):
        return None, gb_s
    seconds = 0.0
    for (key, flops, size), calls in cost.products.items():
        seconds += calls * max(flops / (rates[key] or 1.0) / 1e12, size / gb_s / 1e9)
    return seconds / steps, ""


def by_precision(device: torch.device, formats: Flops) -> dict[str, int]:
    """FLOPs by the format that this device's matmuls use, as torch's switches stand."""
    return _added((allowed_precision(dtype, device, by), flops) for (dtype, by), flops in formats.items())


def _added(flops: Iterable[tuple[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for name, count in flops:
        sums[name] += count
    return sums


def _row(flops: Mapping[str, int], peaks: Mapping[str, Peak], ceilings: Mapping[str, Ceiling]) -> dict[str, Any]:
    if not any(flops.values()):  # given by the user: their format is the model's
        flops = dict.fromkeys(flops, 1)

    def weighted(peak: Callable[[str], float | None]) -> float | None:
        return weighted_peak_flop_s(flops, {name: peak(name) or 0.0 for name in flops})

    return {
        "computed_tflop_s": weighted(lambda name: peaks[name].spec),
        "computed_clock_mhz": peaks[max(flops, key=flops.__getitem__)].spec_clock_mhz,
        "max_clock_tflop_s": weighted(lambda name: peaks[name].max_clock),
        "measured_tflop_s": weighted(lambda name: ceilings[name].tflop_s) if ceilings else None,
    }
