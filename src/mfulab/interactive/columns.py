"""Columns of a window's row: times of its steps, and what share of the device's peak their FLOPs are."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mfulab.device.compute import allowed_precision
from mfulab.device.samplers.reading import Reading, Readings
from mfulab.device.samplers.selection import restriction_of, sources_answered
from mfulab.interactive.kinds import Format
from mfulab.interactive.peaks import WeightedPeaks
from mfulab.interactive.steps import Step
from mfulab.interactive.work import Work
from mfulab.mfu.utilization import product, ratio, utilization
from mfulab.timing.statistics import Stats, median_interval

# Steps are cut into as many stretches for the confidence interval.
_STRETCHES = 5


def times(steps: Sequence[Step], readings: Readings, device: torch.device) -> dict[str, float | str | None]:
    """Columns of the steps' times, and of how closely they were watched."""
    seconds = [step.seconds for step in steps]
    size = max(1, len(seconds) // _STRETCHES)
    cut = [seconds[place : place + size] for place in range(0, size * min(_STRETCHES, len(seconds)), size)]
    interval = median_interval([Stats(stretch).median for stretch in cut]) or (None, None)
    stats, samples = Stats(seconds), [step.samples for step in steps]
    told = [each for each in samples if each is not None]
    return {
        "steps": len(steps),
        "window_s": sum(seconds),
        "time_s": stats.median,
        "time_p5_s": stats.p5,
        "time_p95_s": stats.p95,
        "time_ci_low_s": interval[0],
        "time_ci_high_s": interval[1],
        "samples_per_s": sum(told) / sum(seconds) if len(told) == len(steps) and any(told) else None,
        "ladder": sources_answered(readings),
        "restriction": restriction_of(device) or None,
    }


def shares(
    work: Work,
    dtype: torch.dtype,
    device: torch.device,
    lies_on: Sequence[torch.device],
    clock_mhz: float | None,
    peaks: Callable[[dict[Format, int], dict[Format, int]], WeightedPeaks],
) -> tuple[dict[str, Any], Readings]:
    """Columns of FLOPs, MFU and HFU, and why some are missing. They take the mean step, since all FLOPs count.

    Args:
        work: of the steps.
        dtype: of the model's parameters: the format of FLOPs that the user gave.
        device: what is watched.
        lies_on: devices that hold the model.
        clock_mhz: the mean clock, None if it is not reported.
        peaks: gives the peaks of FLOPs by format, needed and executed.
    """
    readings = {"flops": work.reading}
    if work.total is None:
        precision = allowed_precision(dtype, device, convolutions=False)
        unknown = utilization(None, device=device.type, flops=None, compute={}, memory={})
        return {"effective_precision": precision, "flops": None, **unknown}, readings
    total = work.total
    by_hand = {(dtype, False): total.model}
    found = peaks(dict(total.formats) or by_hand, dict(total.executed_formats) or by_hand)
    if found.reason:
        readings["peak_tflop_s"] = Reading(None, "TFLOP/s", "computed peak", reason=found.reason)
    if len(lies_on) > 1:
        reason = f"the model lies on {', '.join(map(str, lies_on))}: MFU is of one device, and is not formed"
        readings["mfu_percent"] = Reading(None, "%", "counted", reason=reason)
    needed, executed = total.model / work.steps, total.executed / work.steps
    of_peak = utilization(
        work.seconds / work.steps,
        device=device.type,
        flops=needed,
        executed_flops=executed,
        clock_mhz=clock_mhz,
        compute=found.model if len(lies_on) < 2 else {},
        executed_compute=found.executed if len(lies_on) < 2 else {},
        memory={},
    )
    return {
        "uncounted_operators": ", ".join(sorted(total.uncounted)) or None,
        "flops": needed,
        "executed_flops": executed,
        "bytes_moved": total.moved_bytes / work.steps or None,
        **found.columns,
        **of_peak,
        "useful_mfu_percent": product(of_peak["mfu_percent"], ratio(total.useful, total.model)),
    }, readings
