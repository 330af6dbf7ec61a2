"""Certainty of a count: two counts that agree, and what is said if they do not."""

import json
from types import SimpleNamespace

import pytest
import torch
from support.models import read
from torch import nn

from mfulab.flops.certainty import has_formula
from mfulab.flops.count import count
from mfulab.flops.operators import FORMULAS, register
from mfulab.models.counted import count_model
from mfulab.tracing.operators import trace_steps, uncounted_operators


@pytest.mark.parametrize("name", ["resnet18", "gpt2", "lstm", "mobilenet_v2"])
def test_the_second_count_by_layers_agrees(name):
    found = count_model(read(name), 1, 64 if name == "gpt2" else None).count.certainty
    assert found.deviation == 0
    assert found.worst_layer == ""
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.second_share > 0.9
    assert "every operator has a formula" in str(found)


def test_a_formula_that_is_wrong_is_seen_by_the_second_count():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    right = FORMULAS["aten::addmm"]
    try:
        register("aten::addmm", lambda bias, a, b: 2 * a.numel() * (b.shape[-1] if b.shape[-1] == 8 else 1))
        found = count(model, lambda: model(torch.randn(2, 8)).sum(), fused=False).certainty
    finally:
        FORMULAS["aten::addmm"] = right
    assert found.deviation == pytest.approx((2 * 2 * 8 * 4 - 2 * 2 * 8) / (2 * 2 * 8 * 8 + 2 * 2 * 8))
    assert found.worst_layer == "1"


def test_what_is_a_bound_and_what_has_no_formula_is_told():
    class Masked(nn.Module):
        def forward(self, x, mask):
            torch.linalg.svd(x[0, 0])
            return nn.functional.scaled_dot_product_attention(x, x, x, mask)

    with torch.device("meta"):
        model, x = Masked(), torch.randn(1, 2, 8, 4)
        found = count(model, lambda: model(x, torch.ones(8, 8)).sum()).certainty
    assert found.bound_share == 1
    assert found.shares["attention"] == 1
    assert found.deviation is None
    assert found.uncounted == {"aten::_linalg_svd": 1}
    assert "upper bound" in str(found)
    assert "aten::_linalg_svd (1 calls)" in str(found)


@torch.library.custom_op("mfulab_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def test_a_trace_says_how_much_time_operators_without_a_formula_take():
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), torch.randn(256, 256)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        unknown(x)
        model(torch.randn(1, 3, 8, 8)).sum().backward()
        optimizer.step()

    traced = trace_steps(step, torch.device("cpu"), 2)
    names = {event.key for event in traced.profiler.key_averages()}
    assert "mfulab_tests::unknown" in {name for name in names if not has_formula(name)}
    shares = json.loads(uncounted_operators(traced) or "{}")
    assert set(shares) <= {"mfulab_tests::unknown"}
    assert all(1 <= share <= 100 for share in shares.values())


def test_only_what_takes_time_is_listed_with_its_share():
    def event(key, own, on_device=0.0, inside=None):
        return SimpleNamespace(name=key, self_cpu_time_total=own, self_device_time_total=on_device, cpu_parent=inside)

    events = [event("aten::mm", 700), event("mfulab_tests::unknown", 299), event("other::gone", 1)]
    assert uncounted_operators(Traced(events)) == '{"mfulab_tests::unknown": 29.9}'
    events = [event("aten::mm", 1, 800), event("mfulab_tests::unknown", 999, 200)]
    assert uncounted_operators(Traced(events)) == '{"mfulab_tests::unknown": 20.0}'
    assert uncounted_operators(Traced([event("mfulab_tests::unknown", 5), event("aten::mm", 995)])) is None
    assert uncounted_operators(Traced([])) is None
    outer = event("aten::convolution_backward", 10)
    within = event("aten::_slow_conv2d_backward", 90, inside=event("something", 0, inside=outer))
    assert uncounted_operators(Traced([outer, within])) is None, "its formula stands for whatever it calls"


class Traced:
    def __init__(self, events):
        self.profiler = SimpleNamespace(events=lambda: events)
