"""Peaks of what a window multiplied, weighted by FLOPs, and the best matmul, measured in the user's
own process."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import DeviceConfig
from mfulab.core.said import Said, joined
from mfulab.device import cpu, is_gpu, vendors
from mfulab.device.compute import allowed_precision, emulated, matmuls_in
from mfulab.device.gpu import properties_of
from mfulab.device.local_peak import gpu_peak, peak_of
from mfulab.device.peaks import Peak
from mfulab.device.samplers.reading import first_available, sampling
from mfulab.device.samplers.selection import samplers_for
from mfulab.flops.formulas import weighted_peak_flop_s
from mfulab.loop.interactive.costs import Flops, PhaseCost
from mfulab.mfu.causes import OTHERS
from mfulab.mfu.step import Known, StepPeaks
from mfulab.mfu.utilization import GIGA, TERA, default_basis, roof, weights
from mfulab.timing.best_matmul import (
    CAREFUL,
    best_bandwidth,
    fastest_matmul,
    sweep_matmuls,
    sweep_triad,
    triad_length,
)


class Ceiling(NamedTuple):
    """TFLOP/s of the best matmul, None if it cannot be measured in this format, and the share of
    the CPUs that others took meanwhile."""

    tflop_s: float | None
    other_processes_percent: float | None = None
    other_processes: float | None = None

    @property
    def disturbed(self) -> bool:
        """True if other processes slowed the ceiling down, so that it is too low, and MFU of it too
        high."""
        return (self.other_processes_percent or 0) >= OTHERS or (self.other_processes or 0) >= 1


_known: dict[tuple[str, str, int], Ceiling] = {}
_bandwidths: dict[torch.device, float] = {}
MOST_BYTES = 512 << 20  # of the arrays with which a CPU's memory is measured


def measured_ceiling(
    device: torch.device, precision: str, threads: int, limit_s: float, anew: bool = True
) -> Ceiling:
    """Ceiling with a number of threads, measured once per process. With `anew` it is measured again
    if others disturbed it; the best is kept, since neighbours can only slow a matmul down."""
    key = str(device), precision, threads
    for _ in range(2):
        before = _known.get(key)
        if before is not None and not (anew and before.disturbed):
            break
        ceiling = _measure(device, precision, limit_s)
        is_faster = before is None or (ceiling.tflop_s or 0) > (before.tflop_s or 0)
        if is_faster or not ceiling.disturbed:
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


NOT_MEASURED = Said("not_measured_yet")


@dataclass(frozen=True)
class WeightedPeaks:
    """Peaks of a window, weighted by the FLOPs of each format, with the reason if one is
    unknown."""

    step: StepPeaks = field(default_factory=StepPeaks)
    weights: str | None = None  # JSON: format → share of the FLOPs
    reason: Said | None = None
    rates: Mapping[str, Known] = field(default_factory=dict)  # TFLOP/s by format, for a roofline
    memory: float | Said = NOT_MEASURED  # GB/s, or why it is not known


class Mixture:
    """FLOPs of a window by number format, and the format whose peak applies to each (`under`). That
    is fp32 if the device emulates a format and no peak of it is given."""

    def __init__(
        self, device: torch.device, formats: Flops, executed: Flops, given: DeviceConfig
    ) -> None:
        self.needed = by_precision(device, formats)
        executed_by_name = by_precision(device, executed)
        self.under: dict[str, str] = {}
        for name in (*self.needed, *executed_by_name):
            is_emulated = name not in given.peak_tflop_s and emulated(name, device)
            self.under[name] = "fp32" if is_emulated else name
        self.divided = _added((self.under[name], flops) for name, flops in self.needed.items())
        self.of_model = _of_model(self.divided)
        self.executed = _of_model(
            _added((self.under[name], flops) for name, flops in executed_by_name.items())
        )
        self.names = list(dict.fromkeys(self.under.values()))
        self.main = max(self.needed, key=self.needed.__getitem__)


@dataclass(frozen=True)
class KnownPeaks:
    """Computed peaks and measured ceilings by number format."""

    computed: Mapping[str, Peak]
    ceilings: Mapping[str, Ceiling]

    def weighted(self, flops: Mapping[str, int], peak: Callable[[Peak], Known]) -> Known:
        """Peak of a mixture of formats in TFLOP/s; `peak` selects it from the peaks of one
        format."""
        return weighted_peak_flop_s(
            flops, {name: peak(self.computed[name]) or 0.0 for name in flops}
        )

    def ceiling(self, flops: Mapping[str, int]) -> Known:
        """TFLOP/s of the best matmuls for a mixture of formats; None if none were measured."""
        if not self.ceilings:
            return None
        return weighted_peak_flop_s(
            flops, {name: self.ceilings[name].tflop_s or 0.0 for name in flops}
        )

    def rate(self, name: str) -> Known:
        """TFLOP/s of a format for a roofline: that of the best matmul, else the spec peak."""
        measured = None
        if self.ceilings:
            measured = self.ceilings[name].tflop_s
        return measured or self.computed[name].spec

    @property
    def most_disturbed_percent(self) -> float | None:
        """Largest share of the CPUs that others took during a ceiling; None if none was
        disturbed."""
        disturbed = [ceiling for ceiling in self.ceilings.values() if ceiling.disturbed]
        shares = [ceiling.other_processes_percent or 0.0 for ceiling in disturbed]
        return max(shares, default=None)


def peaks_of(
    device: torch.device,
    formats: Flops,
    executed: Flops,
    given: DeviceConfig,
    ceiling_s: float,
    anew: bool = True,
) -> WeightedPeaks:
    """Looks up the peak of each format in use, and measures its best matmul, sharing `ceiling_s`
    seconds among them. `formats` are the FLOPs that the model needs by what was multiplied, and not
    empty; `executed` are those executed. Peaks that the user has `given` come first. `anew`
    measures a ceiling again if others disturbed it."""
    mixture = Mixture(device, formats, executed, given)
    threads = torch.get_num_threads()
    computed = {name: peak_of(device, threads, name, given) for name in mixture.names}
    ceilings: dict[str, Ceiling] = {}
    if ceiling_s:
        share_s = ceiling_s / len(mixture.names)
        for name in mixture.names:
            ceilings[name] = measured_ceiling(device, name, threads, share_s, anew)
    known = KnownPeaks(computed, ceilings)
    divided = [peak for name, peak in computed.items() if mixture.divided.get(name)]
    return WeightedPeaks(
        _step_peaks(mixture, known, default_basis(device.type)),
        weights(mixture.needed),
        joined(peak.reason for peak in divided if peak.reason),
        {name: known.rate(base) for name, base in mixture.under.items()},
        bandwidth(device, bool(ceiling_s)),
    )


def _step_peaks(mixture: Mixture, known: KnownPeaks, basis: str) -> StepPeaks:
    flops = mixture.of_model
    largest = max(flops, key=flops.__getitem__)
    if basis == "spec":
        executed = known.weighted(mixture.executed, lambda peak: peak.spec)
    else:
        executed = known.ceiling(mixture.executed)
    return StepPeaks(
        basis=basis,
        effective_precision=mixture.main,
        peak_precision=mixture.under[mixture.main],
        peak_tflop_s=known.weighted(flops, lambda peak: peak.spec),
        max_clock_tflop_s=known.weighted(flops, lambda peak: peak.max_clock),
        ceiling_tflop_s=known.ceiling(flops),
        executed_tflop_s=executed,
        peak_clock_mhz=known.computed[largest].spec_clock_mhz,
        ceiling_other_processes_percent=known.most_disturbed_percent,
    )


def _of_model(flops: Mapping[str, int]) -> Mapping[str, int]:
    """FLOPs by format. If all are 0, as for FLOPs that the user gave, each format counts 1."""
    if any(flops.values()):
        return flops
    return dict.fromkeys(flops, 1)


def bandwidth(device: torch.device, measuring: bool) -> float | Said:
    """Memory bandwidth in GB/s: a GPU's from its datasheet, a CPU's measured once per process; else
    the reason why it is unknown."""
    if is_gpu(device):
        return gpu_peak(properties_of(device), "fp32").memory_gb_s or Said("no_datasheet_bandwidth")
    if device not in _bandwidths:
        if not measuring:
            return Said("bandwidth_not_measured")
        if 3 * 4 * triad_length(device) > MOST_BYTES:
            return Said("cache_too_large")
        search = replace(CAREFUL[device.type], sample_s=0.02, triads=5)
        _bandwidths[device] = best_bandwidth(sweep_triad(device, search), device)
    return _bandwidths[device]


def attainable_s(
    cost: PhaseCost, peaks: WeightedPeaks, device: torch.device, steps: int
) -> tuple[float | None, Said | None]:
    """Seconds of a step with each product on its own roofline and all other operators fused away,
    or the reason why they are unknown.

    If the last cache holds all that a step moves, memory takes no time.
    """
    if not cost.products:
        return None, Said("bytes_unknown")
    rates = {
        key: peaks.rates.get(allowed_precision(key[0], device, key[1]))
        for key, _, _ in cost.products
    }
    if not all(rates.values()):
        return None, Said("no_peak_of_a_format")
    is_cached = cost.moved_bytes / steps <= certain_cache_bytes(device)
    gb_s = math.inf if is_cached else peaks.memory
    if isinstance(gb_s, Said):
        return None, gb_s
    seconds = 0.0
    for (key, flops, size), calls in cost.products.items():
        peak_flop_s = TERA * (rates[key] or 1.0)
        seconds += calls * roof(flops, peak_flop_s, size, GIGA * gb_s).seconds
    return seconds / steps, None


def certain_cache_bytes(device: torch.device) -> int:
    """Bytes that a device's last-level cache holds for certain; 0 if it is unknown."""
    if is_gpu(device):
        return vendors.of_device(device).certain_cache_bytes(device)
    return cpu.cpu().last_level_cache_bytes or 0


def by_precision(device: torch.device, formats: Flops) -> dict[str, int]:
    """FLOPs by the number format that this device's matmuls use under torch's current settings."""
    named = [
        (allowed_precision(dtype, device, convolutions), flops)
        for (dtype, convolutions), flops in formats.items()
    ]
    return _added(named)


def _added(flops: Iterable[tuple[str, int]]) -> Counter[str]:
    """Sums FLOPs by name."""
    sums: Counter[str] = Counter()
    for name, count in flops:
        sums[name] += count
    return sums
