"""Where a traced step's time goes: by hand on invented events, and on real steps whose answer is known."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from mfulab.tracing import trace
from mfulab.tracing.attribution import FUSED, operator_readings
from mfulab.tracing.operators import trace_steps

CPU = torch.device("cpu")


def tree(name, own=0.0, *children, kernels=0.0):
    """Events of one call and its callees, outermost first; times in µs."""
    inner = [event for child in children for event in child]
    direct = [child[0] for child in children]
    total = own + sum(child.cpu_time_total for child in direct)
    event = SimpleNamespace(
        name=name, self_cpu_time_total=own, cpu_time_total=total, self_device_time_total=kernels, cpu_parent=None
    )
    event.device_type = DeviceType.CPU
    for child in direct:
        child.cpu_parent = event
    return [event, *inner]


def numbered(events):
    for number, event in enumerate(events):
        event.id = number
    return events


def step(kernels=0.0):
    """100 µs: 60 in products, 25 in others, 15 in Python and the autograd engine."""
    return [
        tree("aten::linear", 4, tree("aten::t", 1), tree("aten::addmm", 35, tree("aten::copy_", 10), kernels=kernels)),
        tree("aten::conv2d", 5, tree("aten::convolution", 10)),
        tree("aten::batch_norm", 1, tree("aten::native_batch_norm", 14)),
        tree("autograd::engine::evaluate_function: ReluBackward0", 3, tree("aten::threshold_backward", 5)),
    ]


def test_time_by_hand():
    events = numbered(tree(trace.STEPS, 12, *step()))
    readings, others = operator_readings(events, 1, on_gpu=False)
    assert readings["product_percent"].value == pytest.approx(60)
    assert readings["other_operators_percent"].value == pytest.approx(25)
    assert json.loads(others) == {"aten::batch_norm": 15.0, "aten::conv2d": 5.0, "aten::threshold_backward": 5.0}


def test_what_runs_beside_the_steps_is_not_theirs():
    events = numbered([*tree(trace.STEPS, 12, *step()), *tree("aten::mm", 1000)])
    assert operator_readings(events, 1, on_gpu=False)[0]["product_percent"].value == pytest.approx(60)


def test_a_gpus_time_is_that_of_the_kernels_on_any_thread():
    backward = tree("aten::mm", 1, kernels=30)  # the autograd engine's own thread
    relu = tree("aten::relu", 1, kernels=10)
    events = numbered([*tree(trace.STEPS, 12, *step(kernels=40), relu), *backward])
    wall = events[0].cpu_time_total
    readings, others = operator_readings(events, 1, on_gpu=True)
    assert readings["product_percent"].value == pytest.approx(100 * 70 / wall)
    assert json.loads(others) == {"aten::relu": pytest.approx(100 * 10 / wall, abs=0.05)}


def test_a_graphs_kernels_belong_to_no_operator():
    events = numbered(tree(trace.STEPS, 12, *step(kernels=1), tree("cudaGraphLaunch", 1, kernels=90)))
    readings, others = operator_readings(events, 1, on_gpu=True)
    assert readings["product_percent"].value is None
    assert "graph" in readings["product_percent"].reason
    assert others is None


def test_a_trace_without_operators_says_so():
    for events in ([], numbered(tree("aten::mm", 5))):
        readings, _ = operator_readings(events, 1, on_gpu=False)
        assert "no time of any operator" in readings["other_operators_percent"].reason


def test_a_real_step_of_one_product_and_of_one_sum():
    wide, narrow = torch.randn(768, 768), torch.randn(1 << 22)
    products, _ = operator_readings(trace_steps(lambda: wide @ wide, CPU, 3).profiler.events(), 3, on_gpu=False)
    sums, others = operator_readings(trace_steps(lambda: narrow.exp(), CPU, 3).profiler.events(), 3, on_gpu=False)
    assert products["product_percent"].value > 80
    assert sums["product_percent"].value == 0
    assert sums["other_operators_percent"].value > 80
    assert next(iter(json.loads(others))) == "aten::exp"


def test_the_backward_pass_belongs_to_the_step():
    layer, x = torch.nn.Linear(512, 512), torch.randn(256, 512)
    seen = trace_steps(lambda: layer(x).sum().backward(), CPU, 3).profiler.events()
    forward = trace_steps(lambda: layer(x), CPU, 3).profiler.events()
    both, one = (operator_readings(events, 3, on_gpu=False)[0]["product_percent"] for events in (seen, forward))
    assert both.value * both.window_s > 1.2 * one.value * one.window_s


def test_a_compiled_region_is_an_operator_and_the_products_in_it_are_products():
    events = numbered(
        tree(trace.STEPS, 5, tree("Torch-Compiled Region: 0/0", 5, tree(
            "## Call CompiledFxGraph f1 ##", 60, tree("mkldnn::_linear_pointwise", 30)
        )))
    )  # fmt: skip
    readings, others = operator_readings(events, 1, on_gpu=False)
    assert readings["product_percent"].value == pytest.approx(30)
    assert json.loads(others) == {FUSED: 60.0}


def test_compiled_code_that_hides_its_products_tells_no_share():
    events = numbered(tree(trace.STEPS, 5, tree("## Call CompiledFxGraph f1 ##", 60, tree("aten::empty", 1))))
    readings, others = operator_readings(events, 1, on_gpu=False)
    assert readings["product_percent"].value is None
    assert "no operator tells them apart" in readings["other_operators_percent"].reason
    assert others is None
