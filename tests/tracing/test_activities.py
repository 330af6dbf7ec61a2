"""Devices other than NVIDIA's and AMD's: launches by their own runtimes, and what their trace lacks."""

import json

import pytest
from support.said import numbers
from support.trace_events import H100, event, operator, trace, write

from mfulab.core.said import Said
from mfulab.measurements.read_trace.reader import read_file
from mfulab.tracing.trace import TraceError

MM = operator("aten::mm", 0, 20, [[64, 64], [64, 64]], "c10::BFloat16")


def kernel(begin, number):
    return event("kernel", "GEMM", begin, 30, 7, correlation=number, device=0, stream=7)


@pytest.mark.parametrize(
    "category",
    ["xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver", "hpu_op"],
)  # fmt: skip
def test_a_kernel_finds_its_operator_by_its_devices_own_launch(tmp_path, category):
    launch = event(category, "Launch", 5, 2, 1, correlation=3)
    path = write(tmp_path / "t.json", trace(MM, launch, kernel(40, 3), deviceProperties=[]))
    (found,) = read_file(path)
    assert found.row.flops == 2 * 64**3
    assert found.row.launch_bound_percent is not None
    assert found.row.notes is None


@pytest.mark.parametrize(
    ("device", "activity"),
    [
        ("NVIDIA H100 80GB HBM3", "ProfilerActivity.CUDA"),
        ("AMD Instinct MI300X", "ProfilerActivity.CUDA"),
        ("Intel(R) Data Center GPU Max 1550", "ProfilerActivity.XPU"),
        ("Intel(R) Arc(TM) B580 Graphics", "ProfilerActivity.XPU"),
        ("Gaudi2", "ProfilerActivity.HPU"),
        ("MTIA v2", "ProfilerActivity.MTIA"),
        ("Ascend910B2", "torch_npu.profiler.ProfilerActivity.NPU"),
        ("Some Card 9000", None),
    ],
)
def test_a_trace_without_kernels_names_the_activity_of_its_device(tmp_path, device, activity):
    properties = [H100 | {"name": device}]
    path = write(tmp_path / "t.json", trace(MM, deviceProperties=properties))
    with pytest.raises(TraceError) as error:
        read_file(path)
    assert numbers(error.value, "no_gpu_events")["device"] == repr(device)
    if activity is None:
        assert error.value.why.numbers["advice"] == Said("record_with_its_own")
    else:
        assert numbers(error.value, "record_with")["activity"] == activity


def counters(begin):
    return event("cuda_profiler_range", "gemm", begin, 30, 7, device=0, stream=7)


def test_counters_of_the_range_profiler_are_named(tmp_path):
    launch = event("cuda_runtime", "cudaLaunchKernel", 5, 2, 1, correlation=3)
    path = write(tmp_path / "t.json", trace(MM, launch, kernel(40, 3), counters(40)))
    (found,) = read_file(path)
    assert json.loads(found.row.notes) == {"range_profiler": {"count": 1}}
    path = write(tmp_path / "u.json", trace(MM, launch, counters(40), counters(80)))
    with pytest.raises(TraceError) as error:
        read_file(path)
    assert numbers(error.value, "range_profiler_alone")["count"] == 2
