"""NVML's readings of a GPU between two moments: utilization, energy, throttling, temperature, other processes."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from mfulab.device.samplers.reading import Reading, Readings
from mfulab.device.vendors import RefusedError, nvml

# NVML's utilization lags by up to its sample period (1/6 s to 1 s, by product): samples before this tell of the past.
LAG_S = 1.0
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


@dataclass(frozen=True)
class Moment:
    """The counters at one moment; `unix_s` is the clock of NVML's own time stamps, `elapsed_s` one that nobody sets."""

    unix_s: float
    elapsed_s: float
    energy_mj: Counter
    throttled_ns: dict[str, Counter]


class NvmlSampler:
    """Reads one GPU through its NVML handle. Every value that the driver refuses is empty, with the driver's words."""

    def __init__(
        self, handle: Any, now: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.perf_counter
    ) -> None:
        self._handle, self._now, self._elapsed = handle, now, elapsed
        self._begin: Moment | None = None

    def start(self) -> None:
        self._begin = self._moment()

    def stop(self) -> Readings:
        if self._begin is None:
            raise RuntimeError("stop() before start()")
        end = self._moment()
        window_s = end.elapsed_s - self._begin.elapsed_s
        was_set_s = end.unix_s - self._begin.unix_s - window_s
        if abs(was_set_s) > CLOCK_TOLERANCE_S:
            utilization = self._rates(window_s, f"the samples, as the machine's clock was set by {was_set_s:+.1f} s")
        else:
            utilization = self._utilization(self._begin.unix_s, end.unix_s)
        return {
            "utilization_percent": utilization,
            **energy(self._begin.energy_mj, end.energy_mj, window_s),
            **throttling(self._begin.throttled_ns, end.throttled_ns, window_s),
        }

    def _moment(self) -> Moment:
        energy_mj, reason = _asked(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        fields, refusal = _asked(pynvml.nvmlDeviceGetFieldValues, self._handle, list(THROTTLE_FIELDS))
        refused = Counter(None, reason=refusal)
        values = [refused] * len(THROTTLE_FIELDS) if fields is None else map(_counter, fields)
        throttled = dict(zip(THROTTLE_FIELDS.values(), values, strict=True))
        return Moment(self._now(), self._elapsed(), Counter(energy_mj, reason=reason), throttled)

    def _utilization(self, begin_s: float, end_s: float) -> Reading:
        source = "NVML utilization samples"
        which, since = pynvml.NVML_GPU_UTILIZATION_SAMPLES, begin_s + LAG_S
        answer, reason = _asked(pynvml.nvmlDeviceGetSamples, self._handle, which, int(since * 1e6))
        if answer is not None:
            kind, samples = answer
            reason = f"the samples have the unknown value type {kind}"
            if member := _MEMBER.get(kind):
                stamped = [(sample.timeStamp / 1e6, getattr(sample.sampleValue, member)) for sample in samples]
                mean, reason = within(stamped, since, end_s)
                if mean is not None:
                    return Reading(mean, "%", source, end_s - since)
        return self._rates(end_s - begin_s, f"{source}: {reason}")

    def _rates(self, window_s: float, because: str) -> Reading:
        source = "nvmlDeviceGetUtilizationRates, last sample period"
        if window_s < LAG_S:
            return Reading(None, "%", source, reason=f"{because}; the window is shorter than a sample period")
        rates, refusal = _asked(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        if rates is None:
            return Reading(None, "%", source, reason=f"{because}; {refusal}")
        return Reading(float(rates.gpu), "%", f"{source} (instead of {because})")


class NvmlAtEnd:
    """NVML's values at the end of the window, for lack of means over it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def start(self) -> None:
        """Nothing is kept from the beginning."""

    def stop(self) -> Readings:
        others, reason = other_processes(self._handle, os.getpid())
        readings = {"other_processes": Reading(others, "", "nvmlDeviceGetComputeRunningProcesses", reason=reason)}
        for name, unit, call, *which in (
            ("device_memory_bytes", "B", pynvml.nvmlDeviceGetMemoryInfo),
            ("clock_mhz", "MHz", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            ("temperature_c", "°C", pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        ):
            value, reason = _asked(call, self._handle, *which)
            value = getattr(value, "used", value)
            readings[name] = Reading(value, unit, f"{call.__name__} at the window's end", reason=reason)
        return readings


def within(samples: Iterable[tuple[float, float]], begin_s: float, end_s: float) -> tuple[float | None, str]:
    """The mean of the samples stamped inside [begin, end], or None and why: the ring buffer also holds stale ones."""
    inside = [value for stamp, value in samples if begin_s <= stamp <= end_s]
    return (sum(inside) / len(inside), "") if inside else (None, "no sample was stamped inside the window")


def difference(before: Counter, after: Counter) -> tuple[int | None, str]:
    """Increase of a counter, which may wrap once if it has 32 bits, or None with the reason."""
    if before.value is None or after.value is None:
        return None, before.reason or after.reason
    if after.value >= before.value:
        return after.value - before.value, ""
    if after.wraps:
        return after.value + (1 << 32) - before.value, ""
    return None, "the counter ran backwards: the driver was reset"


def energy(before: Counter, after: Counter, window_s: float) -> Readings:
    """Energy and mean power of the window, from the counter in millijoules."""
    source = "nvmlDeviceGetTotalEnergyConsumption"
    used_mj, reason = difference(before, after)
    if used_mj is not None and window_s < ENERGY_WINDOW_S:
        used_mj, reason = None, f"the window is shorter than {ENERGY_WINDOW_S:g} s, and the counter ticks each 100 ms"
    elif used_mj == 0:  # no GPU that answers draws nothing
        used_mj, reason = None, f"the energy counter stood still for {window_s:.2f} s"
    joule = None if used_mj is None else used_mj / 1e3
    return {
        "window_energy_j": Reading(joule, "J", source, window_s, reason),
        "power_w": Reading(None if joule is None else joule / window_s, "W", f"{source} ÷ time", window_s, reason),
    }


def throttling(before: dict[str, Counter], after: dict[str, Counter], window_s: float) -> Readings:
    """The exact share of the window that each cause held the clock back, and that of power or heat together.

    Causes overlap, so the total is at least the largest and at most the sum; the largest is given.
    """
    readings = {}
    for field, name in THROTTLE_FIELDS.items():
        held_ns, reason = difference(before[name], after[name])
        share = None if held_ns is None else 100 * held_ns / (window_s * 1e9)
        readings[name] = Reading(share, "%", f"NVML field {field}, nanoseconds", window_s, reason)
    known = [reading.value for reading in readings.values() if reading.value is not None]
    readings["throttled_percent"] = Reading(
        max(known, default=None),
        "%",
        "the largest of " + ", ".join(f"field {field}" for field in THROTTLE_FIELDS),
        window_s,
        "" if known else next(iter(readings.values())).reason,
    )
    return readings


def other_processes(handle: Any, own: int | None) -> tuple[int | None, str]:
    """Processes besides `own` (all of them where that is None) that compute on the GPU.

    In a container NVML reports the host's process ids, or none at all: one of those it tells is then taken for `own`.
    """
    processes, reason = _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if processes is None:
        return None, reason
    return count_others([process.pid for process in processes], own), ""


def count_others(pids: Sequence[int], own: int | None) -> int:
    """Number of `pids` other than `own`, which is one of them even if it goes by another number."""
    return len(pids) if own is None else max(0, len(pids) - 1)


def _asked(call: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    try:
        return nvml.ask(call, *arguments), ""
    except RefusedError as refusal:
        return None, str(refusal)


def field(handle: Any, number: int) -> int | None:
    """The value of NVML's field `number` now; None if the driver does not give it."""
    answer, _ = _asked(pynvml.nvmlDeviceGetFieldValues, handle, [number])
    return None if answer is None else _counter(answer[0]).value


def _counter(field: Any) -> Counter:
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        return Counter(None, reason=f"NVML field {field.fieldId}: {pynvml.NVMLError(field.nvmlReturn)}")
    if field.valueType not in _MEMBER:
        return Counter(None, reason=f"NVML field {field.fieldId} has the unknown value type {field.valueType}")
    wraps = field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    return Counter(int(getattr(field.value, _MEMBER[field.valueType])), wraps)
