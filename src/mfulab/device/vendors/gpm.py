"""NVIDIA's GPU performance monitoring (Hopper and later): true averages between two hardware samples, no daemon."""

import time
from collections.abc import Callable
from typing import Any

import pynvml

from mfulab.device.samplers.reading import Reading, Readings, Watched, missing, sampler
from mfulab.device.vendors import RefusedError, nvml

MIB = 1 << 20
PERCENTS = (
    *("graphics_active_percent", "sm_active_percent", "occupancy_percent", "integer_active_percent"),
    *("tensor_active_percent", "dfma_tensor_active_percent", "hmma_tensor_active_percent"),
    *("dmma_tensor_active_percent", "imma_tensor_active_percent", "dram_active_percent"),
    *("fp64_active_percent", "fp32_active_percent", "fp16_active_percent"),
)
# Metric id → column, unit, factor to that unit. Ids of 248 and above are not known to every driver: none is asked for.
METRICS: dict[int, tuple[str, str, float]] = {
    **{number: (name, "%", 1) for number, name in enumerate(PERCENTS, start=1)},
    20: ("pcie_transmitted_gb_s", "GB/s", MIB / 1e9),
    21: ("pcie_received_gb_s", "GB/s", MIB / 1e9),
    60: ("nvlink_received_gb_s", "GB/s", MIB / 1e9),
    61: ("nvlink_transmitted_gb_s", "GB/s", MIB / 1e9),
}
UNITS = {name: unit for name, unit, _ in METRICS.values()}
# The hardware needs more than 100 ms between samples.
MINIMUM_S = 0.2
SOURCE = "GPM"


@sampler
def gpm_sampler(handle: Any, now: Callable[[], float] = time.perf_counter, source: str = SOURCE) -> Watched:
    """Means between one hardware sample at the start and one at the end; without GPM empty, with reasons."""
    samples: list[Any] = []
    refusal = why_unsupported(handle)
    try:
        if not refusal:
            _take(handle, samples)
    except RefusedError as refused:  # some devices claim support and then refuse the first sample
        refusal = str(refused)
    began_s = now()
    yield
    window_s = now() - began_s
    try:
        if refusal:
            raise RefusedError(refusal)
        if window_s < MINIMUM_S:
            raise RefusedError(f"the window of {window_s:.2f} s is shorter than {MINIMUM_S} s")
        _take(handle, samples)
        return _metrics(samples, window_s, source)
    except RefusedError as refused:
        return missing(UNITS, source, str(refused))
    finally:
        for sample in samples:
            nvml.optional(pynvml.nvmlGpmSampleFree, sample)


def _take(handle: Any, samples: list[Any]) -> None:
    """Appends a hardware sample taken now; raises RefusedError where the device gives none."""
    samples.append(nvml.ask(pynvml.nvmlGpmSampleAlloc))
    if nvml.is_mig(handle):
        instance = nvml.ask(pynvml.nvmlDeviceGetGpuInstanceId, handle)
        nvml.ask(pynvml.nvmlGpmMigSampleGet, nvml.parent(handle), instance, samples[-1])
    else:
        nvml.ask(pynvml.nvmlGpmSampleGet, handle, samples[-1])


def why_unsupported(handle: Any) -> str:
    """Empty if the device claims GPM, else the reason."""
    try:
        support = nvml.ask(pynvml.nvmlGpmQueryDeviceSupport, nvml.parent(handle))
    except RefusedError as refusal:
        return str(refusal)
    return "" if support.isSupportedDevice else "this GPU has no GPM (Hopper and later have)"


def _metrics(samples: list[Any], window_s: float, source: str) -> Readings:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    (request.sample1, request.sample2), request.numMetrics = samples, len(METRICS)
    for place, metric in enumerate(METRICS):
        request.metrics[place].metricId = metric
    nvml.ask(pynvml.nvmlGpmMetricsGet, request)
    readings: Readings = {}
    for answer, (metric, (name, unit, factor)) in zip(request.metrics, METRICS.items(), strict=False):
        refused = answer.nvmlReturn != pynvml.NVML_SUCCESS
        reason = f"metric {metric}: {pynvml.NVMLError(answer.nvmlReturn)}" if refused else ""
        # A value that is not finite becomes an empty reading by itself.
        readings[name] = Reading(None if refused else answer.value * factor, unit, source, window_s, reason)
    return readings
