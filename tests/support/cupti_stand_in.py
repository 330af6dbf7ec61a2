"""Emulates `cupti-python` 13.3: the order of calls that it allows, and what a chip can sample in
one pass."""

import enum
import sys
import types
from dataclasses import dataclass

import torch

SHARE = ".avg.pct_of_peak_sustained_elapsed"
ALL = {
    *(
        "sm__cycles_active",
        "sm__pipe_tensor_cycles_active",
        "sm__warps_active",
        "gr__cycles_active",
    ),
    *(
        "dram__cycles_active",
        "fbpa__dram_sectors",
        "sm__pipe_fp64_cycles_active",
        "sm__pipe_fma_cycles_active",
    ),
}
# Per chip, according to NVIDIA's libnvperf_host 13.3: known metrics, those that need two passes, and
# pairs that need two passes together.
CHIPS = {
    "TU104": (ALL | {"sm__inst_executed_pipe_fp16"}, {"dram__cycles_active"}, ()),
    "GA100": (ALL | {"sm__inst_executed_pipe_fp16"}, set(), ()),
    "AD104": (ALL, set(), ({"sm__pipe_fp64_cycles_active", "sm__pipe_fma_cycles_active"},)),
}
WITHOUT_TIME = ("TU104", "GA100")


class TriggerMode(enum.IntEnum):
    GPU_SYSCLK_INTERVAL = 0
    GPU_TIME_INTERVAL = 1


@dataclass(frozen=True)
class Sample:
    start_timestamp: int
    end_timestamp: int
    metric_values: list[float]


class Machine:
    """Machine with one GPU. `values(metric, index)` is a sample's value, `spans` are their lengths
    in ns, and `refuses` is raised by enable."""

    def __init__(self, chip, values, spans=(1_000_000,) * 20, refuses=None):
        self.chip, self.values, self.spans, self.refuses = chip, values, spans, refuses
        self.enabled, self.running, self.configured = 0, False, {}

    def install(self, monkeypatch, uuid):
        machine = self

        class Collector:
            def __init__(self, device_index=0):
                assert device_index == 0
                self._on = False

            def enable(self):
                if machine.refuses:
                    raise machine.refuses
                if machine.enabled:
                    raise RuntimeError("PM sampling is already enabled on this device.")
                machine.enabled, self._on = 1, True

            def configure(self, *, metrics, hardware_buffer_size, sampling_interval, trigger_mode):
                assert self._on
                assert hardware_buffer_size > 0
                assert sampling_interval > 0
                assert all(name.endswith(SHARE) for name in metrics)
                names = {name.removesuffix(SHARE) for name in metrics}
                known, twice, together = CHIPS[machine.chip]
                if not names <= known:
                    raise ValueError("One or more metrics are invalid")
                if names & twice or any(pair <= names for pair in together):
                    raise ValueError("cannot be collected in a single pass")
                if machine.chip in WITHOUT_TIME and trigger_mode == TriggerMode.GPU_TIME_INTERVAL:
                    raise ValueError("TriggerMode.GPU_TIME_INTERVAL is not supported on this GPU")
                machine.configured = {"metrics": metrics, "trigger": trigger_mode}

            def start(self):
                assert machine.configured
                if machine.running:
                    raise RuntimeError("PM Sampling collection has already started")
                machine.running = True

            def stop(self):
                assert machine.running
                machine.running = False

            def decode(self, max_samples=10000):
                assert not machine.running
                if len(machine.spans) > max_samples:
                    raise MemoryError("Record overflow in the hardware buffer.")
                moment, found = 0, []
                for place, span in enumerate(machine.spans):
                    values = [
                        machine.values(name.removesuffix(SHARE), place)
                        for name in machine.configured["metrics"]
                    ]
                    found.append(Sample(moment, moment + span, values))
                    moment += span
                return found

            def disable(self):
                if machine.refuses:
                    raise RuntimeError("PM sampling is not enabled on this device.")
                machine.enabled -= self._on
                self._on = False

        package = types.ModuleType("cupti")
        package.pm_sampling = types.ModuleType("cupti.pm_sampling")
        package.pm_sampling.Collector, package.pm_sampling.TriggerMode = Collector, TriggerMode
        monkeypatch.setitem(sys.modules, "cupti", package)
        monkeypatch.setitem(sys.modules, "cupti.pm_sampling", package.pm_sampling)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        properties = types.SimpleNamespace(uuid=uuid.removeprefix("GPU-"))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        return self
