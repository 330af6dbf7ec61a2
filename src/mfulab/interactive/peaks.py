"""Peak of what a window multiplied: of one format, or of several, weighted by their FLOPs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mfulab.core.groups import DeviceConfig
from mfulab.device.compute import allowed_precision, emulated
from mfulab.device.local_peak import peak_of
from mfulab.device.peaks import Peak
from mfulab.flops.formulas import weighted_peak_flop_s
from mfulab.interactive.ceiling import Ceiling, measured_ceiling
from mfulab.interactive.kinds import Format


@dataclass(frozen=True)
class WeightedPeaks:
    """Peaks in TFLOP/s under MFU, and those under HFU, as `mfulab.mfu.utilization.utilization` takes a ceilings row.

    Attributes:
        model: under the FLOPs that the model needs.
        executed: under those that were executed, which recomputation may shift to another format.
        columns: of the window's row.
        reason: why there is no computed peak; empty if there is one.
    """

    model: dict[str, float | None]
    executed: dict[str, float | None]
    columns: dict[str, Any]
    reason: str


def peaks_of(
    device: torch.device,
    formats: Mapping[Format, int],
    executed: Mapping[Format, int],
    given: DeviceConfig,
    ceiling_s: float,
    anew: bool = True,
) -> WeightedPeaks:
    """Looks up the peak of each format in use, and measures its best matmul, sharing `ceiling_s` seconds among them.

    Args:
        device: what ran the matmuls.
        formats: FLOPs that the model needs by what was multiplied; not empty.
        executed: the same, executed.
        given: peaks that the user gave.
        ceiling_s: seconds to spend on matmuls, 0 for none.
        anew: whether to measure a ceiling again that others disturbed.
    """
    needed, done = by_precision(device, formats), by_precision(device, executed)
    under = {name: _under(name, device, given) for name in (*needed, *done)}
    threads = torch.get_num_threads()
    names = list(dict.fromkeys(under.values()))
    computed = {name: peak_of(device, threads, name, given) for name in names}
    each_s = ceiling_s / len(names)
    ceilings = {name: measured_ceiling(device, name, threads, each_s, anew) for name in names} if ceiling_s else {}
    divided, whole = _by_peak(needed, under), sum(needed.values())
    row = _row(divided, computed, ceilings)
    weights = {name: round(flops / whole, 4) for name, flops in needed.items()} if whole else {}
    disturbed = [one.other_processes_percent for one in ceilings.values() if one.disturbed]
    columns = {
        "effective_precision": most(needed),
        "peak_precision": under[most(needed)],
        "peak_tflop_s": row["computed_tflop_s"],
        "peak_clock_mhz": row["computed_clock_mhz"],
        "peak_weights": json.dumps(weights) if weights else None,
        "ceiling_tflop_s": row["measured_tflop_s"],
        "ceiling_other_processes_percent": max((one or 0.0 for one in disturbed), default=None),
    }
    return WeightedPeaks(
        row,
        _row(_by_peak(done, under), computed, ceilings),
        columns,
        "; ".join(dict.fromkeys(peak.reason for name, peak in computed.items() if divided.get(name) and peak.reason)),
    )


def _under(precision: str, device: torch.device, given: DeviceConfig) -> str:
    """The format whose peak stands under FLOPs of `precision`: fp32 where the device emulates it and none is given."""
    return "fp32" if precision not in given.peak_tflop_s and emulated(precision, device) else precision


def _by_peak(flops: Mapping[str, int], under: Mapping[str, str]) -> dict[str, int]:
    """The same FLOPs by the format whose peak stands under them."""
    found: dict[str, int] = {}
    for name, count in flops.items():
        found[under[name]] = found.get(under[name], 0) + count
    return found


def by_precision(device: torch.device, formats: Mapping[Format, int]) -> dict[str, int]:
    """FLOPs by the format that this device's matmuls use, as torch's switches stand."""
    found: dict[str, int] = {}
    for (dtype, convolutions), flops in formats.items():
        name = allowed_precision(dtype, device, convolutions)
        found[name] = found.get(name, 0) + flops
    return found


def most(flops: Mapping[str, int]) -> str:
    """The format of most FLOPs, the first of equals."""
    return max(flops, key=lambda name: flops[name])


def _row(flops: Mapping[str, int], peaks: Mapping[str, Peak], ceilings: Mapping[str, Ceiling]) -> dict[str, Any]:
    if not any(flops.values()):  # given by the user: their format is the model's
        flops = dict.fromkeys(flops, 1)

    def weighted(peak: Callable[[str], float | None]) -> float | None:
        return weighted_peak_flop_s(flops, {name: peak(name) or 0.0 for name in flops})

    return {
        "computed_tflop_s": weighted(lambda name: peaks[name].spec),
        "computed_clock_mhz": peaks[most(flops)].spec_clock_mhz,
        "max_clock_tflop_s": weighted(lambda name: peaks[name].max_clock),
        "measured_tflop_s": weighted(lambda name: ceilings[name].tflop_s) if ceilings else None,
    }
