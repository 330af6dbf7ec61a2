"""AMD's GPUs through a stand-in for `amdsmi`: who is seen, what is read, and what is refused."""

import os
from types import SimpleNamespace

import pytest
import torch
from support.amd_stand_in import NOT_REPORTED, Gpu, StandIn
from support.said import refused

from mfulab.device import gpu, identity, local_peak, vendors, visible
from mfulab.device.emulation import emulated_here
from mfulab.device.samplers import selection
from mfulab.device.samplers.reading import first_available
from mfulab.device.vendors import RefusedError, amd, torch_build
from mfulab.measurements.environment import EnvironmentConfig
from mfulab.measurements.environment.measure import measure as environment
from mfulab.timing.best_matmul import triad_length

FIRST = "HIP-0-0000:c1:00.0"
TWO = (Gpu(address="0000:05:00.0", hip_id=1), Gpu(address="0000:c1:00.0", hip_id=0))
CUDA = torch.device("cuda", 0)


@pytest.fixture
def one(monkeypatch):
    """A machine with an MI300X, and torch built for ROCm."""
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return StandIn(Gpu(pids=[os.getpid(), 7])).install(monkeypatch)


def readings_of(library, seconds=6.0):
    found = amd.Amd().samplers(FIRST, (), lambda: library.now)
    for each in found:
        each.start()
    library.now += seconds
    return first_available([each.stop() for each in found])


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({}, ["HIP-0-0000:c1:00.0", "HIP-1-0000:05:00.0"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["HIP-1-0000:05:00.0"]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ["HIP-0-0000:05:00.0"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, ["HIP-1-0000:05:00.0"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_hip_s_variables_and_order_say_what_is_seen(environment, seen, monkeypatch):
    StandIn(*TWO).install(monkeypatch)
    assert [device.uuid for device in identity.gpus(environment=environment)] == seen


@pytest.mark.parametrize(
    ("refused", "name", "uuid"),
    [
        ("amdsmi_get_gpu_enumeration_info", "AMD Instinct MI300X OAM", FIRST),
        ("amdsmi_get_gpu_asic_info", "AMD GPU", FIRST),
        ("amdsmi_get_gpu_device_bdf", None, None),
    ],
)
def test_a_gpu_without_number_or_name_is_seen_and_one_without_address_not(one, refused, name, uuid):
    one.gpus[0].refused.add(refused)
    found = [(device.name, device.uuid) for device in identity.gpus(environment={})]
    assert found == ([(name, uuid)] if name else [])


def test_what_a_run_holds_is_all_that_it_sees(monkeypatch):
    StandIn(*TWO).install(monkeypatch)
    second = identity.gpus(environment={})[1]
    assert visible([second.uuid]) == {"HIP_VISIBLE_DEVICES": "1"}
    found = [device.uuid for device in identity.gpus(environment=visible([second.uuid]))]
    assert found == [second.uuid]
    assert visible(["GPU-1", "GPU-2"]) == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}


def test_the_device_is_found_named_and_has_the_peak_of_its_datasheet(one, monkeypatch):
    monkeypatch.setattr(
        torch_build, "installed", lambda: torch_build.Build("2.13.0+rocm7.1", "", "7.1")
    )
    assert identity.hardware_slug() == "amd-instinct-mi300x-oam"
    assert gpu.uuid_of(CUDA) == FIRST
    assert local_peak.local_peak("bf16").spec == pytest.approx(1307.4, rel=0.01)
    assert local_peak.local_peak("bf16").max_clock == pytest.approx(1307.4, rel=0.01)
    assert {*emulated_here("cuda")} == {"tf32"}
    assert gpu.clock_reader(CUDA)() == 1850
    assert gpu.restriction_of(CUDA) == ""


def test_counters_are_differences_over_the_window_and_the_rest_its_end(one):
    found = readings_of(one)
    value = {name: reading.value for name, reading in found.items()}
    assert value["window_energy_j"] == pytest.approx(6 * 700, rel=1e-4)
    assert value["power_w"] == pytest.approx(700, rel=1e-4)
    assert value["power_capped_percent"] == pytest.approx(25)
    assert (value["hardware_thermal_percent"], value["throttled_percent"]) == (0, pytest.approx(25))
    seen = (value["utilization_percent"], value["clock_mhz"], value["temperature_c"])
    assert seen == (97, 1850, 61)
    assert (value["device_memory_bytes"], value["other_processes"]) == (8 << 30, 1)
    assert value["tensor_active_percent"] is None
    assert found["tensor_active_percent"].reason.key == "no_amd_counter"
    assert selection.sources_answered(found) == "driver's counters"


def test_a_short_window_has_no_energy(one):
    assert "shorter than 5 s" in str(readings_of(one, 1.0)["window_energy_j"].reason)


@pytest.mark.parametrize(
    ("refused", "empty"),
    [
        ("amdsmi_get_energy_count", {"window_energy_j", "power_w"}),
        (
            "amdsmi_get_violation_status",
            {"power_capped_percent", "hardware_thermal_percent", "throttled_percent"},
        ),
        ("amdsmi_get_gpu_activity", {"utilization_percent"}),
        ("amdsmi_get_gpu_vram_usage", {"device_memory_bytes"}),
        ("amdsmi_get_clock_info", {"clock_mhz"}),
        ("amdsmi_get_temp_metric", {"temperature_c"}),
        ("amdsmi_get_gpu_process_list", {"other_processes"}),
    ],
)
def test_what_is_refused_is_empty_with_a_reason_and_costs_nothing_else(one, refused, empty):
    before = readings_of(one)
    one.gpus[0].refused.add(refused)
    found = readings_of(one)
    changed = {
        name for name in found if (found[name].value is None) != (before[name].value is None)
    }
    assert changed == empty
    assert all(found[name].reason for name in empty)


def test_what_is_not_reported_is_no_number(one):
    one.gpus[0].busy = NOT_REPORTED
    assert amd.Amd().probe(FIRST, None)()["utilization_percent"] is None
    one.amdsmi_get_violation_status = lambda gpu: {
        "acc_counter": NOT_REPORTED,
        "acc_ppt_pwr": NOT_REPORTED,
    }
    assert "reports none of acc_ppt_pwr" in str(readings_of(one)["power_capped_percent"].reason)


def test_a_card_that_vanishes_is_a_reason(one):
    one.gpus.clear()
    with refused(RefusedError, "knows_no_gpu", address="0000:c1:00.0"):
        amd.Amd().samplers(FIRST, ())
    assert amd.Amd().clock_reader(FIRST)() is None
    assert amd.Amd().properties(FIRST, "AMD Instinct MI300X", 304).sms == 304


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (ImportError("No module named 'amdsmi'"), "pip install amdsmi"),
        (KeyError("libamd_smi.so"), "does not answer: KeyError: 'libamd_smi.so'"),
        (RuntimeError("no driver"), "does not answer: RuntimeError: no driver"),
    ],
)
def test_without_the_library_there_is_no_gpu_and_the_reason_is_told(fails, says, monkeypatch):
    StandIn(fails=fails).install(monkeypatch)
    assert identity.gpus(environment={}) == []
    with pytest.raises(
        identity.NoDeviceError, match=r"no NVIDIA driver answers; .*device=cpu"
    ) as found:
        identity.resolve("cuda")
    assert says in str(found.value)


def test_the_environment_describes_it(one, tmp_path):
    row = environment(EnvironmentConfig.model_validate({"device": {"type": "cpu"}}), tmp_path).row
    assert row.driver == "6.14.14"
    assert '"name": "AMD Instinct MI300X OAM"' in row.gpus
    assert '"power_limit_w": 750.0' in row.gpus
    assert '"sms": 304' in row.gpus


def test_an_identifier_tells_the_vendor():
    found = [type(vendors.of(uuid)).__name__ for uuid in (FIRST, "GPU-1", "MIG-1", "0123", "MPS-0")]
    assert found == [*("Amd", "Nvidia", "Nvidia", "Nvidia", "Apple")]


@pytest.mark.parametrize("l2", [4 << 20, 6 << 20, 8 << 20])
def test_arrays_of_the_memory_ceiling_lie_beyond_the_infinity_cache(one, l2, monkeypatch):
    """HIP reports an MI300X's 4 MiB of L2; behind them lie 256 MiB, which would hold 64 MiB arrays."""
    properties = SimpleNamespace(L2_cache_size=l2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert 4 * triad_length(CUDA) >= 4 * (256 << 20)
    assert vendors.of_device(CUDA).last_cache_bytes(CUDA) == 256 << 20


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("AMD Instinct MI300X OAM", 256 << 20),
        ("AMD Instinct MI355X", 256 << 20),
        ("AMD Instinct MI250X", 8 << 20),
        ("AMD Radeon RX 9070 XT", 8 << 20),
    ],
)
def test_only_cards_known_to_have_the_infinity_cache_hold_as_much(one, name, held, monkeypatch):
    properties = SimpleNamespace(L2_cache_size=8 << 20, name=name, multi_processor_count=64)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert vendors.of_device(CUDA).certain_cache_bytes(CUDA) == held
