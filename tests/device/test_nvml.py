"""NVML and GPM against a stand-in for the library that reproduces what is known to go wrong."""

import math
import os

import pynvml
import pytest
from support.nvml_stand_in import Gpu, StandIn
from support.said import refused

from mfulab.core.language.quantities import with_minus
from mfulab.core.said import Said
from mfulab.device import identity
from mfulab.device.vendors import nvidia, nvml
from mfulab.device.vendors.gpm import METRICS, GpmSampler
from mfulab.device.vendors.nvml_sampler import (
    THROTTLE_FIELDS,
    Counter,
    count_others,
    difference,
    nvml_at_end,
    nvml_sampler,
    other_processes,
)

FIRST = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture(autouse=True)
def forget_the_library():
    yield
    nvml.why_absent.cache_clear()


@pytest.fixture
def library(monkeypatch):
    return lambda *gpus: StandIn(*gpus).install(monkeypatch)


def run(stand_in: StandIn, seconds: float, uuid: str = FIRST, clock_set_by: float = 0) -> dict:
    sampler = nvml_sampler(
        nvml.handle_by_uuid(uuid), now=stand_in.time, elapsed=lambda: stand_in.now
    )
    sampler.start()
    stand_in.now += seconds
    stand_in.unix_s += clock_set_by
    return sampler.stop()


def test_a_gpu_is_found_by_its_uuid_not_its_index(library):
    library(Gpu(uuid="GPU-b", name="Tesla T4"), Gpu(uuid="GPU-a"))
    assert pynvml.nvmlDeviceGetName(nvml.handle_by_uuid("GPU-a")) == "NVIDIA H100 80GB HBM3"
    found = pynvml.nvmlDeviceGetName(nvml.handle_by_uuid("b"))
    assert found == "Tesla T4", "with or without the prefix"
    with refused(nvml.RefusedError, "nvml_knows_no", uuid="GPU-c"):
        nvml.handle_by_uuid("GPU-c")


@pytest.mark.parametrize("period_s", [1 / 6, 1.0])
def test_utilization_is_the_mean_of_samples_in_the_window_but_the_first_period(library, period_s):
    # Idle up to the window at 30 s, which its first sample still tells of; the ring buffer holds
    # the idle past, too.
    stand_in = library(
        Gpu(busy=lambda now: 100 if now >= 30 + 0.99 * period_s else 0, sample_period_s=period_s)
    )
    reading = run(stand_in, 6.0)["utilization_percent"]
    assert reading.value == 100
    assert reading.source == "NVML utilization samples"
    assert reading.window_s == pytest.approx(6 - period_s)


def test_a_second_is_enough_for_utilization_where_samples_are_dense(library):
    assert run(library(Gpu()), 1.2)["utilization_percent"].window_s == pytest.approx(1.2 - 1 / 6)


@pytest.mark.parametrize("clock_set_by", [-3600.0, 2.0])
def test_a_clock_that_is_set_meanwhile_spoils_no_reading(library, clock_set_by):
    steady = run(library(Gpu()), 6.0)
    readings = run(library(Gpu()), 6.0, clock_set_by=clock_set_by)
    by = with_minus(f"{clock_set_by:.1f}")
    assert f"{by} s" in readings["utilization_percent"].source
    assert readings["utilization_percent"].value == 100
    assert {**readings, "utilization_percent": None} == {**steady, "utilization_percent": None}


def test_samples_of_an_unknown_type_are_empty_and_say_so(library):
    reading = run(library(Gpu(sample_type=99)), 6.0)["utilization_percent"]
    assert reading.value == 100
    assert "unknown value type 99" in reading.source
    assert "nvmlDeviceGetUtilizationRates" in reading.source


def test_half_busy_reads_half(library):
    stand_in = library(Gpu(busy=lambda now: 100 if int(now) % 2 else 0))
    assert run(stand_in, 20.0)["utilization_percent"].value == pytest.approx(50, abs=5)


def test_without_a_sample_buffer_the_last_period_stands_in_and_says_so(library):
    reading = run(library(Gpu(refused={"nvmlDeviceGetSamples"})), 6.0)["utilization_percent"]
    assert reading.value == 100
    expected = reading.source
    assert "instead of NVML utilization samples: nvmlDeviceGetSamples: Not Supported" in expected


def test_a_window_too_short_for_utilization_is_empty(library):
    reading = run(library(Gpu(sample_period_s=1.0)), 0.5)["utilization_percent"]
    assert reading.value is None
    assert reading.reason.numbers["second"].key == "window_below_sample"


def test_energy_over_the_ticks(library):
    stand_in = library(Gpu(power_w=600))
    stand_in.now = 30.07
    readings = run(stand_in, 6.0)
    assert readings["window_energy_j"].value == pytest.approx(3600, rel=0.02)
    assert readings["power_w"].value == pytest.approx(600, rel=0.02)


def test_energy_of_a_short_window_is_empty(library):
    reading = run(library(Gpu()), 1.0)["window_energy_j"]
    assert reading.value is None
    assert reading.reason.key == "window_below_energy"


def test_a_counter_that_stands_still_tells_no_energy(library):
    reading = run(library(Gpu(power_w=0)), 6.0)["power_w"]
    assert (reading.value, reading.reason.key) == (None, "energy_stood_still")


def test_throttled_share_is_exact(library):
    readings = run(library(Gpu(capped_share=0.25)), 4.0)
    assert readings["power_capped_percent"].value == pytest.approx(25)
    assert readings["hardware_thermal_percent"].value == 0
    assert readings["throttled_percent"].value == pytest.approx(25)


def test_a_counter_of_32_bits_that_wraps(library):
    gpu = Gpu(
        capped_share=0.25,
        field_type=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
        field_start=(1 << 32) - 8_000_000_000,
    )
    assert run(library(gpu), 4.0)["power_capped_percent"].value == pytest.approx(25)


def test_a_counter_of_an_unknown_type_is_empty_and_says_so(library):
    readings = run(library(Gpu(field_type=99)), 4.0)
    assert readings["power_capped_percent"].value is None
    assert readings["power_capped_percent"].reason.key == "unknown_field_type"
    assert readings["utilization_percent"].value == 100


def test_a_refused_field_is_empty_and_the_others_stay(library):
    readings = run(
        library(Gpu(refused_fields={pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN})), 4.0
    )
    assert readings["hardware_thermal_percent"].value is None
    assert str(readings["hardware_thermal_percent"].reason) == "NVML field 270: Not Supported"
    assert readings["power_capped_percent"].value == pytest.approx(25)


@pytest.mark.parametrize(
    ("call", "lost"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", {"window_energy_j", "power_w"}),
        ("nvmlDeviceGetFieldValues", {*THROTTLE_FIELDS.values(), "throttled_percent"}),
        ("nvmlDeviceGetSamples", set()),
    ],
)
def test_one_refused_call_leaves_the_rest(library, call, lost):
    readings = run(library(Gpu(refused={call})), 6.0)
    empty = {name for name, reading in readings.items() if reading.value is None}
    assert empty == lost
    assert all(str(readings[name].reason).startswith(call) for name in empty)


def test_an_old_driver_lacks_functions(library, monkeypatch):
    stand_in = library(Gpu())
    monkeypatch.delattr(StandIn, "nvmlDeviceGetTotalEnergyConsumption")
    assert str(run(stand_in, 6.0)["window_energy_j"].reason).endswith("Function Not Found")


def test_at_the_end(library):
    library(Gpu(processes=[os.getpid(), 77]))
    sampler = nvml_at_end(nvml.handle_by_uuid(FIRST))
    sampler.start()
    readings = sampler.stop()
    assert {name: reading.value for name, reading in readings.items()} == {
        "device_memory_bytes": 20 << 30,
        "clock_mhz": 1755,
        "temperature_c": 55,
        "other_processes": 1,
    }


@pytest.mark.parametrize(
    ("pids", "others"), [([], 0), ([1], 0), ([1, 2], 1), ([9], 0), ([9, 1], 1)], ids=str
)
def test_other_processes(pids, others):
    assert count_others(pids, own=9) == others, "in a container this process has another id"
    assert count_others(pids, own=None) == len(pids)


def test_no_process_is_told(library):
    library(Gpu(processes=[]))
    assert other_processes(nvml.handle_by_uuid(FIRST), os.getpid()) == (0, None)


@pytest.mark.parametrize(
    "refused", [set(), {"nvmlDeviceGetGraphicsRunningProcesses_v3"}], ids=["told", "refused"]
)
def test_a_desktop_that_draws_is_no_other_process(library, refused):
    library(Gpu(processes=[os.getpid(), 70, 71, 77], drawing=[60, 70, 71], refused=refused))
    handle, others = nvml.handle_by_uuid(FIRST), 3 if refused else 1
    assert other_processes(handle, os.getpid()) == (others, None)
    assert other_processes(handle, None) == (others + 1, None)


def test_a_counter_that_was_reset_is_not_a_difference():
    assert difference(Counter(100), Counter(10))[0] is None
    assert difference(Counter(None, reason=Said("no_gpm")), Counter(10)) == (None, Said("no_gpm"))


def gpm(stand_in: StandIn, seconds: float = 6.0, uuid: str = FIRST) -> dict:
    sampler = GpmSampler(nvml.handle_by_uuid(uuid), now=stand_in.time)
    sampler.start()
    stand_in.now += seconds
    readings = sampler.stop()
    assert stand_in.samples_alive == 0, "every sample is freed"
    return readings


def test_gpm(library):
    readings = gpm(library(Gpu()))
    assert readings["sm_active_percent"].value == 90
    assert readings["tensor_active_percent"].value == 60
    assert readings["pcie_transmitted_gb_s"].value == pytest.approx(100 * (1 << 20) / 1e9)
    assert readings["fp32_active_percent"].value is None
    assert str(readings["fp32_active_percent"].reason) == "metric 12: Not Supported"
    assert set(readings) == {name for name, _, _ in METRICS.values()}


def test_gpm_leaves_out_what_lies_between_windows(library):
    """Samples in flight are those that count; a window too short for the hardware counts for
    nothing."""
    stand_in = library(Gpu())
    sampler = GpmSampler(nvml.handle_by_uuid(FIRST), now=stand_in.time)
    for _ in range(2):  # each measurement has samples of its own
        sampler.start()
        for seconds in (0.05, 1.0, 0.088, 1.5, 0.088, 0.1, 0.05):
            stand_in.now += seconds
            sampler.in_flight()
        readings = sampler.stop()
        assert stand_in.samples_alive == 0
        assert readings["sm_active_percent"].value == pytest.approx(90)
        assert readings["sm_active_percent"].window_s == pytest.approx(2.5)


@pytest.mark.parametrize("asked", [0, 2])
def test_gpm_without_a_long_window_takes_start_and_stop(library, asked):
    stand_in = library(Gpu())
    sampler = GpmSampler(nvml.handle_by_uuid(FIRST), now=stand_in.time)
    sampler.start()
    for _ in range(asked):
        sampler.in_flight()
    stand_in.now += 3.0
    assert sampler.stop()["sm_active_percent"].window_s == pytest.approx(3.0)
    assert stand_in.samples_alive == 0


def test_a_gpm_value_that_is_no_number_is_empty(library):
    readings = gpm(library(Gpu(gpm_values={2: math.nan, 3: 20.0})))
    assert readings["sm_active_percent"].value is None
    assert "nan" in str(readings["sm_active_percent"].reason)
    assert readings["occupancy_percent"].value == 20


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (Gpu(gpm=False), "Hopper and later"),
        (Gpu(refused={"nvmlGpmQueryDeviceSupport"}), "Not Supported"),
        (Gpu(refused={"nvmlGpmSampleGet"}), "nvmlGpmSampleGet: Not Supported"),
    ],
    ids=["older GPU", "refused query", "claims support and refuses the sample"],
)
def test_no_gpm(library, gpu, reason):
    readings = gpm(library(gpu))
    assert all(
        reading.value is None and reason in str(reading.reason) for reading in readings.values()
    )


def test_gpm_needs_time_between_samples(library):
    assert "shorter than 0.2 s" in str(gpm(library(Gpu()), 0.1)["sm_active_percent"].reason)


def test_metrics_that_not_every_driver_knows_are_not_asked_for():
    assert max(METRICS) < 248


def instance() -> Gpu:
    return Gpu(
        name="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        uuid="MIG-1",
        refused={
            "nvmlDeviceGetSamples",
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetTotalEnergyConsumption",
        },
    )


def test_a_mig_instance_has_gpm_and_says_what_it_lacks(library):
    stand_in = library(Gpu(mig_instances=[instance()]))
    assert nvml.restriction(nvml.handle_by_uuid("MIG-1")) == "MIG instance"
    assert gpm(stand_in, uuid="MIG-1")["sm_active_percent"].value == 90
    found = str(run(stand_in, 6.0, "MIG-1")["utilization_percent"].reason).count("Not Supported")
    assert found == 2


def test_clock_and_temperature_of_a_mig_instance_are_its_gpu_s(library):
    library(Gpu(clock_mhz=1410, mig_instances=[instance()]))
    sampler = nvml_at_end(nvml.handle_by_uuid("MIG-1"))
    sampler.start()
    readings = sampler.stop()
    assert (readings["clock_mhz"].value, readings["temperature_c"].value) == (1410, 55)
    assert nvidia.Nvidia().clock_reader("MIG-1")() == 1410
    now = nvidia.Nvidia().probe("MIG-1", None)()
    assert (now["clock_mhz"], now["memory_clock_mhz"], now["temperature_c"]) == (1410, 2619, 55)


def test_the_memory_of_a_mig_instance_is_its_own(library, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    small, whole = instance(), Gpu(memory_bytes=80 << 30)
    small.memory_bytes = 10 << 30
    library(Gpu(memory_bytes=80 << 30, mig_instances=[small]))
    assert identity.memory_bytes("cuda") == 10 << 30
    library(whole)
    assert identity.memory_bytes("cuda") == 80 << 30
    library(Gpu(refused={"nvmlDeviceGetMemoryInfo"}))
    assert identity.memory_bytes("cuda") is None


def test_a_virtual_gpu_is_recognised_and_a_passed_through_one_is_whole(library):
    library(
        Gpu(uuid="GPU-v", virtualization=pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU),
        Gpu(uuid="GPU-p", virtualization=pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH),
    )
    assert nvml.restriction(nvml.handle_by_uuid("GPU-v")) == "vGPU"
    assert nvml.restriction(nvml.handle_by_uuid("GPU-p")) == ""


def test_cuda_devices_come_from_the_library(library):
    library(Gpu(mig_instances=[instance()]), Gpu(uuid="GPU-2"))
    found = [device.uuid for device in identity.gpus(environment={"CUDA_VISIBLE_DEVICES": "GPU-2"})]
    assert found == ["GPU-2"]
    seen = [device.uuid for device in identity.gpus(environment={"CUDA_VISIBLE_DEVICES": "MIG-1"})]
    assert seen == ["MIG-1"]
    assert identity.gpus(environment={"CUDA_VISIBLE_DEVICES": ""}) == []
