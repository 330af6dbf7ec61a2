"""NVML's readings of a GPU between two moments: utilization, energy, throttling, temperature, other processes."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import sub
from statistics import median
from typing import Any

import pynvml

from mfulab.device.samplers.reading import Reading, Readings, Watched, energy, largest, sampler
from mfulab.device.vendors import RefusedError, nvml

# NVML's utilization lags by its sample period (1/6 s to 1 s, by product): a window's first samples tell of the past.
LAG_S = 1.0  # where the samples do not tell their period
CLOCK_TOLERANCE_S = 0.1  # by which the wall clock may drift from the steady one in a window: it is being slewed
# The energy counter ticks each 100 ms: over 5 s its edges make 2 % at most.
ENERGY_WINDOW_S = 5.0
# Field → the column it feeds. All count nanoseconds since the driver was loaded.
THROTTLE_FIELDS = {
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "power_capped_percent",
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: "software_thermal_percent",
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: "hardware_thermal_percent",
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: "power_brake_percent",
}
# By NVML_VALUE_TYPE_…, which count from 0.
_MEMBER = dict(enumerate(("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")))


@dataclass(frozen=True)
class Counter:
    """A running total as one call gave it, or the reason why it was not given."""

    value: int | None
    wraps: bool = False  # at 32 bits
    reason: str = ""


@sampler
def nvml_sampler(
    handle: Any, now: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.perf_counter
) -> Watched:
    """Reads a GPU; what the driver refuses is empty, in its words. `now` is NVML's clock, `elapsed` one nobody sets."""
    before, began_s, began = _totals(handle), now(), elapsed()
    yield
    after, ended_s, window_s = _totals(handle), now(), elapsed() - began
    return {
        "utilization_percent": _utilization(handle, began_s, ended_s, window_s),
        **energy_of(before[0], after[0], window_s),
        **throttling(before[1:], after[1:], window_s),
    }


def _totals(handle: Any) -> list[Counter]:
    """Running totals: energy in mJ, then the nanoseconds of THROTTLE_FIELDS, in their order."""
    energy_mj, reason = _asked(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return [Counter(energy_mj, reason=reason), *fields(handle, list(THROTTLE_FIELDS))]


def _utilization(handle: Any, begin_s: float, end_s: float, window_s: float) -> Reading:
    """Mean of NVML's samples in the window; without them, in a window long enough, the last sample period's."""
    source = "NVML utilization samples"
    if abs(was_set_s := end_s - begin_s - window_s) > CLOCK_TOLERANCE_S:
        because = f"the samples, as the machine's clock was set by {was_set_s:+.1f} s"
    else:
        which = pynvml.NVML_GPU_UTILIZATION_SAMPLES
        answer, reason = _asked(pynvml.nvmlDeviceGetSamples, handle, which, int((begin_s - LAG_S) * 1e6))
        kind, samples = answer or (-1, ())
        if member := _MEMBER.get(kind):
            stamped = [(sample.timeStamp / 1e6, getattr(sample.sampleValue, member)) for sample in samples]
            stamps = sorted(stamp for stamp, _ in stamped)  # the ring buffer also holds stale ones
            since = begin_s + min([LAG_S, *([median(map(sub, stamps[1:], stamps))] if len(stamps) > 2 else [])])
            if inside := [value for stamp, value in stamped if since <= stamp <= end_s]:
                return Reading(sum(inside) / len(inside), "%", source, end_s - since)
            reason = "no sample was stamped inside the window"
        because = f"{source}: {reason or f'the samples have the unknown value type {kind}'}"
    source = "nvmlDeviceGetUtilizationRates, last sample period"
    if window_s < LAG_S:
        return Reading(None, "%", source, reason=f"{because}; the window is shorter than a sample period")
    rates, refusal = _asked(pynvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is None:
        return Reading(None, "%", source, reason=f"{because}; {refusal}")
    return Reading(float(rates.gpu), "%", f"{source} (instead of {because})")


@sampler
def nvml_at_end(handle: Any) -> Watched:
    """NVML's values at the end of the window, for lack of means over it."""
    yield
    others, reason = other_processes(handle, os.getpid())
    readings = {"other_processes": Reading(others, "", "nvmlDeviceGetComputeRunningProcesses", reason=reason)}
    for name, unit, call, *which in (
        ("device_memory_bytes", "B", pynvml.nvmlDeviceGetMemoryInfo),
        ("clock_mhz", "MHz", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        ("temperature_c", "°C", pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    ):
        # A MIG instance has no clock or temperature but its GPU's.
        value, reason = _asked(call, nvml.parent(handle) if which else handle, *which)
        value = getattr(value, "used", value)
        readings[name] = Reading(value, unit, f"{call.__name__} at the window's end", reason=reason)
    return readings


def difference(before: Counter, after: Counter) -> tuple[int | None, str]:
    """Increase of a counter, which may wrap once if it has 32 bits, or None with the reason."""
    if before.value is None or after.value is None:
        return None, before.reason or after.reason
    if after.value >= before.value:
        return after.value - before.value, ""
    if after.wraps:
        return after.value + (1 << 32) - before.value, ""
    return None, "the counter ran backwards: the driver was reset"


def energy_of(before: Counter, after: Counter, window_s: float) -> Readings:
    """Energy and mean power of the window, from the counter in millijoules."""
    used_mj, reason = difference(before, after)
    if used_mj is not None and window_s < ENERGY_WINDOW_S:
        used_mj, reason = None, f"the window is shorter than {ENERGY_WINDOW_S:g} s, and the counter ticks each 100 ms"
    elif used_mj == 0:  # no GPU that answers draws nothing
        used_mj, reason = None, f"the energy counter stood still for {window_s:.2f} s"
    joule = None if used_mj is None else used_mj / 1e3
    return energy(joule, "nvmlDeviceGetTotalEnergyConsumption", window_s, reason)


def throttling(before: Sequence[Counter], after: Sequence[Counter], window_s: float) -> Readings:
    """Exact shares of the window that each cause held the clock back, and the largest of them, as causes overlap."""
    readings = {}
    for (field, name), start, end in zip(THROTTLE_FIELDS.items(), before, after, strict=True):
        held_ns, reason = difference(start, end)
        share = None if held_ns is None else 100 * held_ns / (window_s * 1e9)
        readings[name] = Reading(share, "%", f"NVML field {field}, nanoseconds", window_s, reason)
    fields = ", ".join(f"field {field}" for field in THROTTLE_FIELDS)
    return readings | {"throttled_percent": largest(readings, f"the largest of {fields}")}


def other_processes(handle: Any, own: int | None) -> tuple[int | None, str]:
    """Processes besides `own` (all where None) that compute on the GPU, without those that draw, too. In a container
    NVML tells the host's ids: one is taken for `own`."""
    processes, reason = _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if processes is None:
        return None, reason
    drawing = {process.pid for process in nvml.optional(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ()}
    return count_others([process.pid for process in processes if process.pid not in drawing], own), ""


def count_others(pids: Sequence[int], own: int | None) -> int:
    """Number of `pids` other than `own`, which is one of them even if it goes by another number."""
    return len(pids) if own is None else max(0, len(pids) - 1)


def _asked(call: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    try:
        return nvml.ask(call, *arguments), ""
    except RefusedError as refusal:
        return None, str(refusal)


def fields(handle: Any, numbers: list[int]) -> list[Counter]:
    """The values of NVML's fields of these numbers now."""
    answers, refusal = _asked(pynvml.nvmlDeviceGetFieldValues, handle, numbers)
    return [Counter(None, reason=refusal)] * len(numbers) if answers is None else list(map(_counter, answers))


def _counter(field: Any) -> Counter:
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        return Counter(None, reason=f"NVML field {field.fieldId}: {pynvml.NVMLError(field.nvmlReturn)}")
    if field.valueType not in _MEMBER:
        return Counter(None, reason=f"NVML field {field.fieldId} has the unknown value type {field.valueType}")
    wraps = field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    return Counter(int(getattr(field.value, _MEMBER[field.valueType])), wraps)
