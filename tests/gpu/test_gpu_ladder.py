"""On a real GPU: GPM, NVML and the trace against kernels of known behaviour."""

import time

import pynvml
import pytest
import torch

from mfulab.core.groups import DeviceConfig
from mfulab.device import gpu
from mfulab.device.identity import gpus
from mfulab.device.local_peak import peak_of
from mfulab.device.peaks import gpu_peak
from mfulab.device.samplers.series import Series
from mfulab.device.vendors import nvidia, nvml
from mfulab.device.vendors.cupti import PmSampler
from mfulab.device.vendors.gpm import GpmSampler, why_unsupported
from mfulab.device.vendors.nvml_sampler import nvml_sampler
from mfulab.mfu.causes import CROSS_CHECK
from mfulab.timing.clocks import EventClock
from mfulab.timing.pace import Pace
from mfulab.timing.windows import observe
from mfulab.tracing.operators import trace_readings, trace_steps

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)
PACE = Pace(windows=3, window_s=1.0, warm_up_s=2.0, tolerance=0.05)
ROUND_MS = 1_700_000  # clocks of torch's spin kernel in about a millisecond


@pytest.fixture(scope="module")
def handle():
    return nvml.handle_by_uuid(gpu.uuid_of(DEVICE))


@pytest.fixture(scope="module", params=["GPM", "CUPTI"])
def gpm(handle, request):
    """What makes a sampler of hardware counters: of each source that this GPU has."""
    torch.zeros(1, device=DEVICE)  # CUPTI numbers devices as a process that uses CUDA does
    uuid = nvml.ask(pynvml.nvmlDeviceGetUUID, handle)
    make = {"GPM": lambda: GpmSampler(handle), "CUPTI": lambda: PmSampler(uuid, "")}[request.param]
    reason = why_unsupported(handle) if request.param == "GPM" else make().refusal
    if reason:
        pytest.skip(str(reason))
    return make


def spin() -> None:
    torch.cuda._sleep(ROUND_MS)


@pytest.fixture(scope="module")
def product():
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


@pytest.fixture(scope="module")
def copy():
    source = torch.randn(1 << 28, device=DEVICE)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def readings(step, *samplers):
    return observe(step, EventClock(DEVICE), PACE, samplers).readings


def test_one_thread_in_a_loop_reads_fully_busy_on_one_sm(handle, gpm):
    seen = readings(spin, gpm(), nvml_sampler(handle))
    sms = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    assert seen["utilization_percent"].value > 90
    assert (
        seen["graphics_active_percent"].value is None or seen["graphics_active_percent"].value > 99
    )
    assert seen["sm_active_percent"].value < 3 * 100 / sms
    assert seen["tensor_active_percent"].value < 1


def test_a_large_product_fills_sms_and_tensor_cores(gpm, product):
    seen = readings(product, gpm())
    assert seen["sm_active_percent"].value > 90
    assert seen["tensor_active_percent"].value > 50
    assert seen["fp64_active_percent"].value is None or seen["fp64_active_percent"].value < 1


def test_a_copy_fills_dram_and_no_tensor_core(gpm, copy):
    seen = readings(copy, gpm())
    assert seen["dram_active_percent"].value > 60
    assert seen["tensor_active_percent"].value < 1


def test_mfu_agrees_with_the_tensor_pipe(gpm, product, tmp_path):
    series = Series(DEVICE, tmp_path / "series.csv").open()
    try:
        observed = observe(product, EventClock(DEVICE), PACE, [gpm(), series])
    finally:
        series.close()
    # polled during the windows: after them it is another
    clock = observed.readings["clock_mhz"].value
    peak = gpu_peak(gpu.properties_of(DEVICE), "bf16")
    mfu = 100 * 2 * 8192**3 / observed.time_s / 1e12 / peak.spec
    expected = observed.readings["tensor_active_percent"].value * clock / peak.spec_clock_mhz
    assert 1 / CROSS_CHECK < mfu / expected < CROSS_CHECK


def test_the_trace_tells_busy_from_idle(product):
    def sparse() -> None:
        product()
        torch.cuda.synchronize()
        time.sleep(0.02)

    busy, analysis = trace_readings(trace_steps(product, DEVICE, 20), DEVICE)
    idle, _ = trace_readings(trace_steps(sparse, DEVICE, 5), DEVICE)
    assert busy["kernel_busy_percent"].value > 95
    assert idle["kernel_busy_percent"].value < 50
    assert analysis.kernels[0]["calls"] == 20


def test_the_trace_tells_copies_apart():
    host = torch.empty(1 << 24, pin_memory=True)
    target = torch.empty(1 << 24, device=DEVICE)
    seen, _ = trace_readings(trace_steps(lambda: target.copy_(host), DEVICE, 5), DEVICE)
    assert seen["copy_percent"].value > 80
    assert seen["compute_busy_percent"].value < 5


def test_energy_is_power_times_time(handle, product):
    pace = Pace(windows=5, window_s=1.2, warm_up_s=2.0, tolerance=0.05)
    seen = observe(product, EventClock(DEVICE), pace, [nvml_sampler(handle)]).readings
    if seen["power_w"].value is None:
        pytest.skip(str(seen["power_w"].reason))
    limit = nvml.ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle) / 1e3
    assert 0.2 * limit < seen["power_w"].value < 1.1 * limit


def test_nvml_and_torch_mean_the_same_gpu(handle):
    assert gpus()[0].uuid.endswith(gpu.uuid_of(DEVICE))
    assert nvidia.Nvidia().describe_all()[0]["name"] == torch.cuda.get_device_name(DEVICE)


def test_no_product_beats_the_highest_clocks_peak(product):
    observed = observe(product, EventClock(DEVICE), PACE)
    peak = peak_of(DEVICE, 1, "bf16", DeviceConfig())
    if peak.max_clock is None:
        pytest.skip(peak.reason)
    assert 2 * 8192**3 / observed.time_s / 1e12 < peak.max_clock


def test_a_captured_training_step_learns(tmp_path):
    from mfulab.measurements.profile_step import ProfileStepConfig
    from mfulab.measurements.profile_step import measure as profile_step

    config = ProfileStepConfig.model_validate(
        {
            "model": {
                "name": "linear",
                "_target_": "torch.nn.Linear",
                "arguments": {"in_features": 64, "out_features": 8},
                "input_shape": [64],
            },
            "batch_size": 32,
            "workload": {"name": "training"},
            "precision": {"name": "fp32", "dtype": "float32"},
            "execution": {"name": "cuda_graph", "mode": "cuda_graph"},
            "device": {"type": "cuda"},
            "timing": {"windows": 2, "window_time_s": 0.1, "warm_up_time_s": 0.2},
        }
    )
    row = profile_step.measure(config, tmp_path).row
    assert row.status == "ok"
    assert row.loss < 2.0
    assert (tmp_path / "kernels.csv").exists()


def test_phases_of_a_training_step_are_events_that_sum_to_it(tmp_path):
    from mfulab.measurements.profile_step import ProfileStepConfig
    from mfulab.measurements.profile_step import measure as profile_step

    config = ProfileStepConfig.model_validate(
        {
            "model": {
                "name": "wide",
                "_target_": "torch.nn.Linear",
                "arguments": {"in_features": 8192, "out_features": 8192},
                "input_shape": [8192],
            },
            "batch_size": 4096,
            "workload": {"name": "training"},
            "precision": {"name": "fp32", "dtype": "float32"},
            "execution": {"name": "eager"},
            "device": {"type": "cuda"},
        }
    )
    row = profile_step.measure(config, tmp_path).row
    phases = [row.forward_ms, row.backward_ms, row.optimiser_ms, row.other_ms]
    assert sum(phases) == pytest.approx(1e3 * row.time_s, rel=0.02)
    # Inputs need no gradient: backward is one product, as forward is.
    assert row.backward_ms == pytest.approx(row.forward_ms, rel=0.1)
    assert row.forward_ms > row.other_ms
