"""Apple's GPUs by stand-ins for ioreg and torch.mps: named, timed, sampled, with reasons."""

import json

import pytest
import torch
from support.apple_stand_in import TOLD, in_place_of_the_cpu, ioreport, mac

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import DeviceConfig, PrecisionConfig
from mfulab.core.said import Said, from_json
from mfulab.device import gpu, identity, kind_of, require_cuda, vendors, visible
from mfulab.device.compute import effective_precision, emulated, prepare
from mfulab.device.local_peak import peak_of
from mfulab.device.samplers.reading import first_available, sampling
from mfulab.device.vendors import GpuProperties, apple
from mfulab.lab.planning.load import load
from mfulab.measurements.bench_matmul import BenchMatmulConfig
from mfulab.measurements.bench_matmul import measure as bench_matmul
from mfulab.measurements.ceilings import CeilingsConfig
from mfulab.measurements.ceilings import measure as ceilings
from mfulab.measurements.environment import EnvironmentConfig
from mfulab.measurements.environment.measure import measure as environment
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.measurements.profile_step import measure as profile_step
from mfulab.measurements.profile_step.process import measure_step
from mfulab.mfu.utilization import default_basis
from mfulab.timing import best_matmul
from mfulab.timing.clocks import EventClock

MPS = torch.device("mps")
DEVICE = DeviceConfig(name="mps", type="mps")


def step(mode, **changes):
    linear = {"in_features": 64, "out_features": 8}
    values = {
        "model": {
            "name": "linear",
            "_target_": "torch.nn.Linear",
            "arguments": linear,
            "input_shape": [64],
        },
        **{
            "batch_size": 4,
            "workload": {"name": mode, "mode": mode},
            "execution": {"name": "eager"},
        },
        "precision": {"name": "fp32", "dtype": "float32"},
        **{"device": {"type": "mps"}, "profile": {"operators": True}},
        "timing": {"windows": 2, "window_time_s": 0.3, "warm_up_time_s": 0.2, "patience_s": 0.0},
    }
    return ProfileStepConfig.model_validate({**values, **changes})


@pytest.fixture
def here(monkeypatch):
    mac(monkeypatch)


def test_it_is_found_and_named_but_only_measured_where_it_is_asked_for(here):
    assert identity.resolve("mps") == "mps"
    assert identity.resolve("auto") == "cpu"
    assert identity.hardware_slug("mps") == "apple-m2-gpu"
    assert kind_of("apple-m2-gpu") == "mps"
    assert kind_of("apple-m2-8c") == "cpu"
    assert gpu.uuid_of(MPS) == "MPS-0"
    assert gpu.properties_of(MPS) == GpuProperties("Apple M2", 8, None)
    assert peak_of(MPS, 1, "fp32", DEVICE).spec == pytest.approx(3.6 * 8 / 10)
    assert peak_of(MPS, 1, "fp16", DEVICE).reason.key == "peak_to_be_given"
    assert visible(["MPS-0"]) == {}
    assert vendors.of("MPS-0").describe_all() == [{"name": "Apple M2 GPU", "uuid": "MPS-0"}]


def test_elsewhere_it_is_refused_with_the_choices():
    with pytest.raises(
        identity.NoDeviceError, match=r"device=mps: this machine is no Mac .* choose device=cpu"
    ):
        identity.resolve("mps")
    assert apple.Apple().describe_all() == []


def test_a_torch_without_it_says_so(here, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(
        identity.NoDeviceError,
        match=r"device=mps: torch .* was built without it; choose device=cpu",
    ):
        prepare(DeviceConfig(name="mps", type="mps"))


@pytest.mark.parametrize(
    ("told", "busy", "memory", "of_busy"),
    [
        (TOLD, 87.0, 1_234_567_890.0, ""),
        ({}, None, None, apple.NEEDS_ROOT),
        (None, None, None, apple.NEEDS_ROOT),
    ],
)
def test_what_ioreg_tells_is_read_and_all_else_says_why(monkeypatch, told, busy, memory, of_busy):
    mac(monkeypatch, told)
    with sampling(apple.Apple().samplers("MPS-0", ())) as found:
        pass
    readings = first_available(found)
    assert readings["utilization_percent"].value == busy
    assert readings["device_memory_bytes"].value == memory
    for name, why in {
        "power_w": "zeus",
        "window_energy_j": "zeus",
        "clock_mhz": "root",
        "sm_active_percent": "Xcode",
    }.items():
        assert readings[name].value is None
        assert why in str(readings[name].reason)
    assert vendors.of("MPS-0").probe("MPS-0", None)()["utilization_percent"] == busy


@pytest.mark.parametrize(("counted", "power"), [(3_000, 1.5), (0, 0.0), (None, None)])
def test_energy_is_the_window_s_and_power_is_energy_by_time(here, monkeypatch, counted, power):
    package = ioreport(monkeypatch, counted)
    sampler = apple.Apple().samplers("MPS-0", (), iter((10.0, 12.0)).__next__)[0]
    sampler.start()
    readings = sampler.stop()
    assert package.windows == []
    assert readings["power_w"].value == power
    assert readings["window_energy_j"].value == (None if counted is None else counted / 1e3)
    assert counted is not None or readings["power_w"].reason.key == "ioreport_counts_none"


def test_a_mac_without_ioreport_says_so(here, monkeypatch):
    ioreport(monkeypatch, RuntimeError("no channels"))
    sampler = apple.Apple().samplers("MPS-0", ())[0]
    sampler.start()
    assert str(sampler.stop()["power_w"].reason) == "IOReport: no channels"


def test_it_computes_three_formats_no_tf32_and_nothing_that_is_written_for_cuda():
    def effective(dtype, tf32=False):
        return effective_precision(PrecisionConfig(name="x", dtype=dtype, tf32=tf32), MPS)

    found = [effective(f"{name}") for name in ("float32", "float16", "bfloat16")]
    assert found == ["fp32", "fp16", "bf16"]
    assert effective("float32", tf32=True) == "fp32"
    assert emulated("tf32", MPS) == Said("tf32_is_nvidias")
    assert not emulated("bf16", MPS)
    with pytest.raises(UnsupportedError, match=r"torch\.mps computes in fp32, fp16, bf16"):
        effective("float64")
    with pytest.raises(UnsupportedError, match="probe_memory: needs CUDA's"):
        require_cuda(MPS, "probe_memory")
    require_cuda("cuda", "probe_memory")
    require_cuda(torch.device("cpu"), "probe_memory")
    seen = [default_basis(kind) for kind in ("mps", "cuda", "cpu")]
    assert seen == ["measured", "spec", "measured"]


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_whole_step_is_measured_by_its_code(here, monkeypatch, tmp_path, mode):
    in_place_of_the_cpu(monkeypatch)
    assert EventClock(torch.device("cpu")).name == "CPU events"
    measured, analysis = measure_step(step(mode), tmp_path)
    row = measured.row
    assert row.time_s > 0
    assert row.utilization_percent == 87
    assert row.device_memory_bytes == TOLD["In use system memory"]
    assert row.kernel_busy_percent is None
    assert analysis is None
    reasons = {name: str(from_json(cell)) for name, cell in json.loads(row.reasons).items()}
    assert "zeus-apple-silicon" in reasons["power_w"]
    assert "root" in reasons["clock_mhz"]
    assert "no peak; Metal held" in reasons["memory_bytes"]
    assert "torch sees none" in reasons["kernel_busy_percent"]


@pytest.mark.slow
def test_its_ceilings_are_measured_beside_what_apple_prints(here, monkeypatch, tmp_path):
    in_place_of_the_cpu(monkeypatch)
    search = best_matmul.Search([(128, 128, 128)], 15.0, 0.2, settle_s=0.5)
    monkeypatch.setitem(best_matmul.CAREFUL, "cpu", search)
    monkeypatch.setattr(best_matmul, "last_cache_bytes", lambda _: 1 << 20)
    precision = PrecisionConfig(name="fp32", dtype="float32")
    row = ceilings.measure(
        CeilingsConfig(ceiling="fp32", precision=precision, device=DEVICE), tmp_path
    ).row
    assert row.measured_tflop_s > 0
    assert row.computed_tflop_s == pytest.approx(2.88)
    row = ceilings.measure(CeilingsConfig(ceiling="memory", device=DEVICE), tmp_path).row
    assert row.measured_gb_s > 0
    assert row.computed_gb_s is None


def test_the_environment_names_it(here, monkeypatch, tmp_path):
    in_place_of_the_cpu(monkeypatch)
    row = environment(EnvironmentConfig(device=DEVICE), tmp_path).row
    assert row.device_name == "Apple M2"
    assert json.loads(row.gpus) == [{"name": "Apple M2 GPU", "uuid": "MPS-0", "sms": None}]


def test_matmul_kernels_and_jobs_of_several_processes_are_refused(here, tmp_path):
    matmul = BenchMatmulConfig.model_validate(
        {
            **{"size": "8", "device": {"type": "mps"}},
            "precision": {"name": "fp32", "dtype": "float32"},
            "kernel": {"name": "torch", "_target_": "mfulab.kernels.torch_matmul.TorchMatmul"},
        }
    )
    with pytest.raises(UnsupportedError, match=r"kernel=torch: needs CUDA's streams"):
        bench_matmul.measure(matmul, tmp_path)
    with pytest.raises(UnsupportedError, match=r"parallel\.processes=2: needs CUDA's streams"):
        profile_step.measure(step("training", parallel={"processes": 2}), tmp_path)
    with pytest.raises(UnsupportedError, match="no float64"):
        profile_step.measure(step("inference", profile={"exact": True}), tmp_path)


def test_a_sweep_for_it_is_planned_on_any_machine():
    (found,) = load(
        {"experiment": "seminar_matmul", "hardware": "apple-m2-gpu", "device": "mps"}
    ).plans
    assert found.hardware == "apple-m2-gpu"
    assert {run.config["device"]["type"] for run in found.runs if "device" in run.config} == {"mps"}
