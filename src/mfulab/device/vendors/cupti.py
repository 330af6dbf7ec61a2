"""Hardware counters of NVIDIA GPUs before Hopper, sampled by CUPTI in this process (package
`cupti-python` 13.3 or later). The GPU writes counters to a buffer every 10 ms; a reading is the
mean over the window's samples. Needs Turing or later, a driver that allows this user, and no
dcgm-exporter. † Tested against a stand-in only."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from mfulab.core.said import Said, of_source
from mfulab.device.samplers.reading import Now, Reading, Readings, missing
from mfulab.device.vendors import RefusedError
from mfulab.device.vendors.gpm import UNITS

SOURCE = "CUPTI, samples each 10 ms"
INTERVAL = 10_000_000  # ns; on Turing and GA100, which cannot use time, system clock cycles
BUFFER_BYTES = 128 << 20
LEAST = 10  # samples
SHARE = "avg.pct_of_peak_sustained_elapsed"
# Column → candidate metrics, best first. If one pass cannot hold all columns, later ones are left
# out.
METRICS = {
    "sm_active_percent": ("sm__cycles_active",),
    "tensor_active_percent": ("sm__pipe_tensor_cycles_active",),
    "dram_active_percent": ("dram__cycles_active", "fbpa__dram_sectors"),  # the second for Turing
    "occupancy_percent": ("sm__warps_active",),
    "graphics_active_percent": ("gr__cycles_active",),
    "fp32_active_percent": ("sm__pipe_fma_cycles_active",),
    "fp64_active_percent": ("sm__pipe_fp64_cycles_active",),  # since GA102 not along with fp32's
    "fp16_active_percent": ("sm__inst_executed_pipe_fp16",),
}


class PmSampler:
    """Means over the samples that the GPU took in the window. `refusal` is the reason why CUPTI
    cannot; `without` is why no more direct source is used."""

    def __init__(self, uuid: str, without: Said, now: Now = time.perf_counter) -> None:
        self._uuid = uuid
        self._without = without
        self._now = now
        self._collector: Any = None
        self._trigger: Any = None
        self._columns: dict[str, str] = {}
        self.refusal: Said | None = None
        self._began_s = 0.0
        with self._guarded():
            self._prepare()

    def start(self) -> None:
        if not self.refusal:
            with self._guarded():
                if self._collector is None:
                    self._prepare()
                self._collector.start()
        self._began_s = self._now()

    def stop(self) -> Readings:
        window_s = self._now() - self._began_s
        samples: list[Any] = []
        if not self.refusal:
            with self._guarded():
                self._collector.stop()
                samples = self._collector.decode(max_samples=100 + int(4e9 * window_s / INTERVAL))
        if self._collector is not None:
            with suppress(Exception):  # if it could not be enabled
                self._collector.disable()  # leaves CUPTI free for later kernel traces
            self._collector = None
        if self.refusal:
            return missing(UNITS, SOURCE, Said("no_cupti", why=self._without, refusal=self.refusal))
        if len(samples) < LEAST:
            return missing(UNITS, SOURCE, Said("few_samples", count=len(samples)))
        read = missing(UNITS, SOURCE, Said("not_in_one_pass"))
        for place, name in enumerate(self._columns):
            mean = _mean(samples, place)
            reason = Said("no_number_sampled") if mean is None else None
            read[name] = Reading(mean, UNITS[name], SOURCE, window_s, reason)
        return read

    def _prepare(self) -> None:
        from cupti import pm_sampling  # type: ignore[import-not-found]

        self._collector = pm_sampling.Collector(_number(self._uuid))
        self._collector.enable()
        if not self._columns:
            modes = pm_sampling.TriggerMode
            if not any(map(self._choose, (modes.GPU_TIME_INTERVAL, modes.GPU_SYSCLK_INTERVAL))):
                raise RefusedError(Said("no_metric"))
        self._configure(self._columns)

    def _choose(self, trigger: Any) -> bool:
        """Adds each column's first metric that still fits into one pass. Returns False if the first
        column has none under `trigger`."""
        self._trigger = trigger
        for column, metrics in METRICS.items():
            for metric in metrics:
                try:
                    self._configure(self._columns | {column: metric})
                except ValueError:  # the chip does not have it, or the pass is full
                    continue
                self._columns[column] = metric
                break
            if not self._columns:
                return False
        return True

    def _configure(self, columns: dict[str, str]) -> None:
        self._collector.configure(
            metrics=[f"{metric}.{SHARE}" for metric in columns.values()],
            hardware_buffer_size=BUFFER_BYTES,
            sampling_interval=INTERVAL,
            trigger_mode=self._trigger,
        )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Stores any error of CUPTI, of which there are many types, as `refusal`."""
        try:
            yield
        except ImportError:
            self.refusal = Said("install", package="cupti-python")
        except RefusedError as error:
            self.refusal = error.said
        except Exception as error:
            self.refusal = of_source(type(error).__name__, str(error))


def _mean(samples: Sequence[Any], place: int) -> float | None:
    """Mean of the samples' metric at a place, weighted by their lengths; None if none is a finite
    number."""
    weighted = 0.0
    total = 0
    for sample in samples:
        value = sample.metric_values[place]
        if math.isfinite(value):
            span = sample.end_timestamp - sample.start_timestamp
            weighted += span * value
            total += span
    if not total:
        return None
    return weighted / total


def _number(uuid: str) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        raise RefusedError(Said("cuda_unused"))
    for number in range(torch.cuda.device_count()):
        if uuid.endswith(str(torch.cuda.get_device_properties(number).uuid)):
            return number
    raise RefusedError(Said("cuda_knows_no", uuid=uuid))
