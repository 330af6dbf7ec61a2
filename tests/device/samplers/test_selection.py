"""The source that fills each rung, and what the row says of it."""

import json
from types import SimpleNamespace

import pytest
import torch
from support.nvml_stand_in import Gpu, StandIn

from mfulab.core.said import Said
from mfulab.device import gpu
from mfulab.device.samplers import selection
from mfulab.device.samplers.reading import Reading, sampling
from mfulab.device.vendors import gpm, nvml, nvml_sampler
from mfulab.measurements.profile_step import ProfileRow
from mfulab.timing.clocks import HostClock
from mfulab.timing.pace import Pace
from mfulab.timing.windows import observe

CUDA = SimpleNamespace(type="cuda")
PACE = Pace(windows=2, window_s=0.01, warm_up_s=0.02, tolerance=0.5)


@pytest.fixture
def device(monkeypatch):
    def make(made: Gpu):
        StandIn(made).install(monkeypatch)
        monkeypatch.setattr(gpu, "uuid_of", lambda device: made.uuid)
        return CUDA

    yield make
    nvml.why_absent.cache_clear()


def row_of(readings: dict[str, Reading], steps: int = 10) -> ProfileRow:
    row = ProfileRow()
    selection.set_readings(row, readings, steps)
    return row


def test_values_sources_and_reasons():
    row = row_of(
        {
            "utilization_percent": Reading(80.0, "%", "NVML utilization samples", 5.0),
            "sm_active_percent": Reading(None, "%", "GPM", reason=Said("no_gpm")),
            "window_energy_j": Reading(500.0, "J", "counter", 5.0),
            "other_processes": Reading(2.0, "", "NVML"),
        }
    )
    assert row.utilization_percent == 80
    assert row.energy_j == 50
    assert row.other_processes == 2
    assert row.sm_active_percent is None
    assert json.loads(row.sources)["energy_j"] == "counter ÷ 10 steps over 5.00 s"
    assert json.loads(row.reasons) == {"sm_active_percent": {"no_gpm": {}}}
    assert row.utilization_source == "NVML utilization samples over 5.00 s"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            ["sm_active_percent", "kernel_busy_percent", "power_capped_percent"],
            "hardware counters, trace, driver's counters",
        ),
        (
            ["kernel_busy_percent", "power_capped_percent", "utilization_percent"],
            "trace, driver's counters",
        ),
        (["voluntary_switches_per_s", "throttled_percent", "utilization_percent"], "CPU time"),
        (["utilization_percent"], "utilization only"),
        ([], "counted only"),
    ],
)
def test_the_row_names_the_strictest_source(columns, said):
    assert row_of({name: Reading(1.0, "%", "x") for name in columns}).sources_answered == said


def test_every_reading_of_a_gpu_has_a_column(device, monkeypatch):
    # The window is too short for both, however long a busy machine makes it.
    monkeypatch.setattr(gpm, "MINIMUM_S", 1e6)
    monkeypatch.setattr(nvml_sampler, "LAG_S", 1e6)
    samplers = selection.samplers_for(device(Gpu()))
    seen = observe(lambda: None, HostClock(), PACE, samplers)
    row = row_of(seen.readings, seen.steps)
    assert row.clock_mhz == 1755
    assert row.utilization_percent is None
    assert "sm_active_percent" in json.loads(row.reasons)


def test_a_gpu_that_nvml_does_not_know_is_unwatched(monkeypatch):
    monkeypatch.setattr(nvml, "why_absent", lambda: Said("no_nvidia_driver"))
    monkeypatch.setattr(gpu, "uuid_of", lambda device: "GPU-1")
    sampler, _ = selection.samplers_for(CUDA)
    sampler.start()
    row = row_of(sampler.stop())
    assert row.sources_answered == "counted only"
    found = json.loads(row.reasons)["utilization_percent"]
    assert found == {"nvml_silent": {"why": {"no_nvidia_driver": {}}}}
    assert gpu.restriction_of(CUDA) == ""
    assert gpu.clock_reader(CUDA)() is None


def test_the_clock_is_read_for_the_warm_up(device):
    assert gpu.clock_reader(device(Gpu(clock_mhz=1410)))() == 1410
    assert gpu.clock_reader(torch.device("cpu"))() is None


def test_a_cpu_has_its_own_samplers():
    with sampling(selection.samplers_for(torch.device("cpu"))) as found:
        pass
    first = ["utilization_percent", "window_energy_j", "input_wait_percent"]
    assert [next(iter(readings)) for readings in found] == first
