"""NVIDIA's GPU performance monitoring (Hopper and later): true averages between two hardware samples, no daemon."""

import time
from collections.abc import Callable
from typing import Any

import pynvml

from mfulab.device.samplers.reading import Reading, Readings, missing
from mfulab.device.vendors import RefusedError, nvml

MIB = 1 << 20
# Metric id → column, unit, factor to that unit. Ids of 248 and above are not known to every driver: none is asked for.
METRICS: dict[int, tuple[str, str, float]] = {
    1: ("graphics_active_percent", "%", 1),
    2: ("sm_active_percent", "%", 1),
    3: ("occupancy_percent", "%", 1),
    4: ("integer_active_percent", "%", 1),
    5: ("tensor_active_percent", "%", 1),
    6: ("dfma_tensor_active_percent", "%", 1),
    7: ("hmma_tensor_active_percent", "%", 1),
    8: ("dmma_tensor_active_percent", "%", 1),
    9: ("imma_tensor_active_percent", "%", 1),
    10: ("dram_active_percent", "%", 1),
    11: ("fp64_active_percent", "%", 1),
    12: ("fp32_active_percent", "%", 1),
    13: ("fp16_active_percent", "%", 1),
    20: ("pcie_transmitted_gb_s", "GB/s", MIB / 1e9),
    21: ("pcie_received_gb_s", "GB/s", MIB / 1e9),
    60: ("nvlink_received_gb_s", "GB/s", MIB / 1e9),
    61: ("nvlink_transmitted_gb_s", "GB/s", MIB / 1e9),
}
UNITS = {name: unit for name, unit, _ in METRICS.values()}
# The hardware needs more than 100 ms between samples.
MINIMUM_S = 0.2
SOURCE = "GPM"


class GpmSampler:
    """One hardware sample at the start and one at the end; a device without GPM gives empty readings with reasons."""

    def __init__(self, handle: Any, now: Callable[[], float] = time.perf_counter, source: str = SOURCE) -> None:
        self._handle, self._now, self._source = handle, now, source
        self._first: Any = None
        self._refusal = ""
        self._began_s = 0.0

    def start(self) -> None:
        self._refusal = why_unsupported(self._handle)
        if not self._refusal:
            self._first = self._sample()
        self._began_s = self._now()

    def stop(self) -> Readings:
        window_s = self._now() - self._began_s
        if self._refusal:
            return missing(UNITS, self._source, self._refusal)
        second = self._sample() if window_s >= MINIMUM_S else None
        try:
            if second is None:
                reason = self._refusal or f"the window of {window_s:.2f} s is shorter than {MINIMUM_S} s"
                return missing(UNITS, self._source, reason)
            return _metrics(self._first, second, window_s, self._source)
        except RefusedError as refusal:
            return missing(UNITS, self._source, str(refusal))
        finally:
            for sample in (self._first, second):
                if sample is not None:
                    nvml.optional(pynvml.nvmlGpmSampleFree, sample)
            self._first = None

    def _sample(self) -> Any:
        """A hardware sample taken now, None (and the refusal kept) where the device gives none."""
        sample = None
        try:
            sample = nvml.ask(pynvml.nvmlGpmSampleAlloc)
            if nvml.is_mig(self._handle):
                instance = nvml.ask(pynvml.nvmlDeviceGetGpuInstanceId, self._handle)
                nvml.ask(pynvml.nvmlGpmMigSampleGet, nvml.parent(self._handle), instance, sample)
            else:
                nvml.ask(pynvml.nvmlGpmSampleGet, self._handle, sample)
        except RefusedError as refusal:
            # Some devices claim support and then refuse the first sample.
            self._refusal = str(refusal)
            if sample is not None:
                nvml.optional(pynvml.nvmlGpmSampleFree, sample)
            return None
        return sample


def why_unsupported(handle: Any) -> str:
    """Empty if the device claims GPM, else the reason."""
    try:
        support = nvml.ask(pynvml.nvmlGpmQueryDeviceSupport, nvml.parent(handle))
    except RefusedError as refusal:
        return str(refusal)
    return "" if support.isSupportedDevice else "this GPU has no GPM (Hopper and later have)"


def _metrics(first: Any, second: Any, window_s: float, source: str) -> Readings:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.sample1, request.sample2, request.numMetrics = first, second, len(METRICS)
    for place, metric in enumerate(METRICS):
        request.metrics[place].metricId = metric
    nvml.ask(pynvml.nvmlGpmMetricsGet, request)
    readings: Readings = {}
    for place, (metric, (name, unit, factor)) in enumerate(METRICS.items()):
        answer = request.metrics[place]
        if answer.nvmlReturn == pynvml.NVML_SUCCESS:
            # A value that is not finite becomes an empty reading by itself.
            readings[name] = Reading(answer.value * factor, unit, source, window_s)
        else:
            reason = f"metric {metric}: {pynvml.NVMLError(answer.nvmlReturn)}"
            readings[name] = Reading(None, unit, source, window_s, reason)
    return readings
