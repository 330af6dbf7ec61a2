"""NVML readings of a GPU over a window: utilization, energy, throttling, temperature, other
processes."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import sub
from statistics import median
from typing import Any, TypeVar

import pynvml

from mfulab.core.said import Said, joined, of_source
from mfulab.device.samplers.reading import (
    UNTOLD,
    Now,
    Reading,
    Readings,
    Watched,
    energy,
    largest,
    sampler,
)
from mfulab.device.vendors import RefusedError, nvml

# NVML's utilization lags by its sample period (1/6 s to 1 s, depending on the product): the first
# samples of a window cover time before it.
LAG_S = 1.0  # if the period cannot be derived from the samples
# Tolerated drift of the wall clock from the monotonic one in a window, as it may be slewed.
CLOCK_TOLERANCE_S = 0.1
# The energy counter ticks every 100 ms: over 5 s that is an error of at most 2 %.
ENERGY_WINDOW_S = 5.0
# Field → column. All count nanoseconds since the driver was loaded.
THROTTLE_FIELDS = {
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "power_capped_percent",
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: "software_thermal_percent",
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: "hardware_thermal_percent",
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: "power_brake_percent",
}
# Indexed by NVML_VALUE_TYPE_…, which count from 0.
_MEMBER = dict(enumerate(("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")))

SAMPLES = "NVML utilization samples"  # source of a reading

T = TypeVar("T")


@dataclass(frozen=True)
class Counter:
    """Running total from one call, or the reason why it is missing."""

    value: int | None
    wraps: bool = False  # at 32 bits
    reason: Said | None = None


@sampler
def nvml_sampler(
    handle: nvml.Handle,
    now: Now = time.time,
    elapsed: Now = time.perf_counter,
) -> Watched:
    """Reads utilization, energy and throttling of a GPU. Values that the driver refuses are empty,
    with its reason. `now` is NVML's clock (wall time), `elapsed` a monotonic one."""
    before = _totals(handle)
    began_s = now()
    began = elapsed()
    yield
    after = _totals(handle)
    ended_s = now()
    window_s = elapsed() - began
    return {
        "utilization_percent": _utilization(handle, began_s, ended_s, window_s),
        **energy_of(before[0], after[0], window_s),
        **throttling(before[1:], after[1:], window_s),
    }


def _totals(handle: nvml.Handle) -> list[Counter]:
    """Running totals: energy in mJ, then nanoseconds for each of THROTTLE_FIELDS in order."""
    energy_mj, reason = _asked(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return [Counter(energy_mj, reason=reason), *fields(handle, list(THROTTLE_FIELDS))]


def _utilization(handle: nvml.Handle, begin_s: float, end_s: float, window_s: float) -> Reading:
    """Mean of NVML's utilization samples in the window. Without samples, NVML's latest rate if the
    window is long enough."""
    was_set_s = end_s - begin_s - window_s
    if abs(was_set_s) > CLOCK_TOLERANCE_S:
        because = Said("clock_set", seconds=was_set_s)
    else:
        sampled = _mean_of_samples(handle, begin_s, end_s)
        if isinstance(sampled, Reading):
            return sampled
        because = of_source(SAMPLES, sampled)
    source = "nvmlDeviceGetUtilizationRates, last sample period"
    if window_s < LAG_S:
        return Reading(None, "%", source, reason=joined([because, Said("window_below_sample")]))
    rates, refusal = _asked(pynvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is None:
        return Reading(None, "%", source, reason=joined([because, refusal or UNTOLD]))
    return Reading(float(rates.gpu), "%", f"{source} (instead of {because})")


def _mean_of_samples(handle: nvml.Handle, begin_s: float, end_s: float) -> Reading | Said:
    """Mean of NVML's utilization samples in the window, or the reason why it is unknown."""
    which = pynvml.NVML_GPU_UTILIZATION_SAMPLES
    since_us = int((begin_s - LAG_S) * 1e6)
    answer, refusal = _asked(pynvml.nvmlDeviceGetSamples, handle, which, since_us)
    kind, samples = answer or (-1, ())
    member = _MEMBER.get(kind)
    if member is None:
        return refusal or Said("unknown_value_type", kind=kind)
    # sorted, as NVML's ring buffer also holds stale samples
    stamps = sorted(sample.timeStamp / 1e6 for sample in samples)
    lag_s = LAG_S
    if len(stamps) > 2:
        lag_s = min(lag_s, median(map(sub, stamps[1:], stamps)))
    since_s = begin_s + lag_s
    inside = []
    for sample in samples:
        if since_s <= sample.timeStamp / 1e6 <= end_s:
            inside.append(getattr(sample.sampleValue, member))
    if not inside:
        return Said("no_sample_inside")
    return Reading(sum(inside) / len(inside), "%", SAMPLES, end_s - since_s)


@sampler
def nvml_at_end(handle: nvml.Handle) -> Watched:
    """NVML values at the end of the window, for which there is no mean over it."""
    yield
    others, reason = other_processes(handle, os.getpid())
    # A MIG instance has no clock or temperature of its own, so its GPU is asked.
    gpu = nvml.parent(handle)
    source = "nvmlDeviceGetComputeRunningProcesses"
    return {
        "other_processes": Reading(others, "", source, reason=reason),
        "device_memory_bytes": _at_end("B", pynvml.nvmlDeviceGetMemoryInfo, handle),
        "clock_mhz": _at_end("MHz", pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        "temperature_c": _at_end(
            "°C", pynvml.nvmlDeviceGetTemperature, gpu, pynvml.NVML_TEMPERATURE_GPU
        ),
    }


def _at_end(unit: str, call: Callable[..., Any], *arguments: object) -> Reading:
    """Reading of NVML's answer to a call; of an answer about memory, of what is used."""
    answer, reason = _asked(call, *arguments)
    value = getattr(answer, "used", answer)
    return Reading(value, unit, f"{call.__name__} at the window's end", reason=reason)


def difference(before: Counter, after: Counter) -> tuple[int | None, Said | None]:
    """Increase of a counter, and None; or None with the reason. A 32-bit counter may wrap once."""
    if before.value is None or after.value is None:
        return None, before.reason or after.reason
    if after.value >= before.value:
        return after.value - before.value, None
    if after.wraps:
        return after.value + (1 << 32) - before.value, None
    return None, Said("counter_backwards")


def energy_of(before: Counter, after: Counter, window_s: float) -> Readings:
    """Energy and mean power over the window, from counters in millijoules."""
    used_mj, reason = difference(before, after)
    if used_mj is not None and window_s < ENERGY_WINDOW_S:
        used_mj = None
        reason = Said("window_below_energy", least=ENERGY_WINDOW_S)
    elif used_mj == 0:  # a GPU that answers always draws some power
        used_mj = None
        reason = Said("energy_stood_still", seconds=window_s)
    joule = None
    if used_mj is not None:
        joule = used_mj / 1e3
    return energy(joule, "nvmlDeviceGetTotalEnergyConsumption", window_s, reason)


def throttling(before: Sequence[Counter], after: Sequence[Counter], window_s: float) -> Readings:
    """Share of the window for which each cause held the clock down. `throttled_percent` is the
    largest of them, as causes overlap."""
    readings = {}
    for (field, name), start, end in zip(THROTTLE_FIELDS.items(), before, after, strict=True):
        held_ns, reason = difference(start, end)
        share = None
        if held_ns is not None:
            share = 100 * held_ns / (window_s * 1e9)
        readings[name] = Reading(share, "%", f"NVML field {field}, nanoseconds", window_s, reason)
    fields = ", ".join(f"field {field}" for field in THROTTLE_FIELDS)
    return readings | {"throttled_percent": largest(readings, f"the largest of {fields}")}


def other_processes(handle: nvml.Handle, own: int | None) -> tuple[int | None, Said | None]:
    """Number of processes other than `own` that compute on the GPU, not counting those that also
    render graphics. None with the reason if unknown. All count if `own` is None. In a container
    NVML reports host process ids, so one process is taken for `own`."""
    processes, reason = _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if processes is None:
        return None, reason
    graphics = nvml.optional(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    drawing = {process.pid for process in graphics or ()}
    computing = [process.pid for process in processes if process.pid not in drawing]
    return count_others(computing, own), None


def count_others(pids: Sequence[int], own: int | None) -> int:
    """Number of `pids` other than `own`. One of them is taken for `own`, even if its id differs."""
    if own is None:
        return len(pids)
    return max(0, len(pids) - 1)


def _asked(call: Callable[..., T], *arguments: object) -> tuple[T | None, Said | None]:
    try:
        return nvml.ask(call, *arguments), None
    except RefusedError as refusal:
        return None, refusal.said


def fields(handle: nvml.Handle, numbers: list[int]) -> list[Counter]:
    """Current values of NVML fields, by field number."""
    answers, refusal = _asked(pynvml.nvmlDeviceGetFieldValues, handle, numbers)
    if answers is None:
        return [Counter(None, reason=refusal)] * len(numbers)
    return list(map(_counter, answers))


def _counter(field: Any) -> Counter:
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        error = str(pynvml.NVMLError(field.nvmlReturn))
        return Counter(None, reason=of_source(f"NVML field {field.fieldId}", error))
    if field.valueType not in _MEMBER:
        return Counter(
            None, reason=Said("unknown_field_type", field=field.fieldId, kind=field.valueType)
        )
    wraps = field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    return Counter(int(getattr(field.value, _MEMBER[field.valueType])), wraps)
