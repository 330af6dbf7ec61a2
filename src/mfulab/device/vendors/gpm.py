"""NVIDIA's GPU performance monitoring (GPM), on Hopper and later. Returns true averages between two
hardware samples and needs no daemon."""

import time
from typing import Any, NamedTuple

import pynvml

from mfulab.core.said import Said, of_source
from mfulab.device.samplers.reading import Now, Reading, Readings, missing
from mfulab.device.vendors import RefusedError, nvml

MIB = 1 << 20
PERCENTS = (
    "graphics_active_percent",
    "sm_active_percent",
    "occupancy_percent",
    "integer_active_percent",
    "tensor_active_percent",
    "dfma_tensor_active_percent",
    "hmma_tensor_active_percent",
    "dmma_tensor_active_percent",
    "imma_tensor_active_percent",
    "dram_active_percent",
    "fp64_active_percent",
    "fp32_active_percent",
    "fp16_active_percent",
)
# Metric id → column, unit, factor to that unit. Ids from 248 on are left out, as not every driver
# has them.
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


class Taken(NamedTuple):
    """Hardware sample with the time at which it was taken."""

    at_s: float
    sample: Any


class GpmSampler:
    """Means between pairs of hardware samples. `in_flight` takes them at the begin and end of each
    window, so idle time does not count. If all windows are too short, uses the samples of `start`
    and `stop`."""

    def __init__(
        self,
        handle: nvml.Handle,
        now: Now = time.perf_counter,
        source: str = SOURCE,
    ) -> None:
        self._handle = handle
        self._now = now
        self._source = source
        self._outside, self._inside = list[Taken](), list[Taken]()
        self._refusal = why_unsupported(handle)

    def start(self) -> None:
        self._outside = []
        self._inside = []
        self._take(self._outside)

    def in_flight(self) -> None:
        self._take(self._inside)

    def stop(self) -> Readings:
        self._take(self._outside)
        both = list(zip(self._inside[::2], self._inside[1::2], strict=False))
        long = [pair for pair in both if pair[1].at_s - pair[0].at_s >= MINIMUM_S]
        try:
            if not self._refusal and not long:
                long = [(self._outside[0], self._outside[1])]
                if (window_s := long[0][1].at_s - long[0][0].at_s) < MINIMUM_S:
                    self._refusal = Said("window_too_short", seconds=window_s, least=MINIMUM_S)
            if self._refusal:
                raise RefusedError(self._refusal)
            return _metrics(long, self._source)
        except RefusedError as refused:
            return missing(UNITS, self._source, refused.said)
        finally:
            for taken in (*self._outside, *self._inside):
                nvml.optional(pynvml.nvmlGpmSampleFree, taken.sample)

    def _take(self, taken: list[Taken]) -> None:
        """Takes a hardware sample and appends it. Some devices claim support, but then refuse the
        first sample."""
        if self._refusal:
            return
        try:
            taken.append(Taken(self._now(), nvml.ask(pynvml.nvmlGpmSampleAlloc)))
            if nvml.is_mig(self._handle):
                instance = nvml.ask(pynvml.nvmlDeviceGetGpuInstanceId, self._handle)
                nvml.ask(
                    pynvml.nvmlGpmMigSampleGet,
                    nvml.parent(self._handle),
                    instance,
                    taken[-1].sample,
                )
            else:
                nvml.ask(pynvml.nvmlGpmSampleGet, self._handle, taken[-1].sample)
        except RefusedError as refused:
            self._refusal = refused.said


def why_unsupported(handle: nvml.Handle) -> Said | None:
    """Reason why the device does not support GPM; None if it claims to."""
    try:
        support = nvml.ask(pynvml.nvmlGpmQueryDeviceSupport, nvml.parent(handle))
    except RefusedError as refusal:
        return refusal.said
    if support.isSupportedDevice:
        return None
    return Said("no_gpm")


def _metrics(pairs: list[tuple[Taken, Taken]], source: str) -> Readings:
    lengths = [after.at_s - before.at_s for before, after in pairs]
    whole = sum(lengths)
    sums = dict.fromkeys(UNITS, 0.0)
    reasons = dict[str, Said]()
    for (before, after), length in zip(pairs, lengths, strict=True):
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2, request.numMetrics = (
            before.sample,
            after.sample,
            len(METRICS),
        )
        for place, metric in enumerate(METRICS):
            request.metrics[place].metricId = metric
        nvml.ask(pynvml.nvmlGpmMetricsGet, request)
        for answer, (metric, (name, _, factor)) in zip(
            request.metrics, METRICS.items(), strict=False
        ):
            if answer.nvmlReturn != pynvml.NVML_SUCCESS:
                error = str(pynvml.NVMLError(answer.nvmlReturn))
                reasons[name] = of_source(f"metric {metric}", error)
            sums[name] += answer.value * factor * length / whole
    # Reading itself replaces values that are not finite by None.
    return {
        name: Reading(
            None if name in reasons else sums[name], unit, source, whole, reasons.get(name)
        )
        for name, unit in UNITS.items()
    }
