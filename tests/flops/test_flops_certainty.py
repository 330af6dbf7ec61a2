"""Certainty of a count: two counts that agree, and what is said if they do not."""

import json
from types import SimpleNamespace

import pytest
import torch
from support.models import read
from support.slow import few
from torch import nn

from mfulab.flops.certainty import has_formula
from mfulab.flops.count import count
from mfulab.flops.operators import FORMULAS, register
from mfulab.models.counted import count_model
from mfulab.tracing.operators import trace_steps, uncounted_operators


@pytest.mark.parametrize("name", few(["gpt2", "resnet18", "lstm", "mobilenet_v2"], 2))
def test_the_second_count_by_layers_agrees(name):
    found = count_model(read(name), 1, 64 if name == "gpt2" else None).count.certainty
    assert found.deviation == 0
    assert found.worst_layer == ""
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.second_share > 0.9
    assert found.uncounted == {}


def test_a_formula_that_is_wrong_is_seen_by_the_second_count():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    right = FORMULAS["aten::addmm"]
    try:
        register(
            "aten::addmm",
            lambda bias, a, b: 2 * a.numel() * (b.shape[-1] if b.shape[-1] == 8 else 1),
        )
        found = count(model, lambda: model(torch.randn(2, 8)).sum(), fused=False).certainty
    finally:
        FORMULAS["aten::addmm"] = right
    seen = found.deviation
    assert seen == pytest.approx((2 * 2 * 8 * 4 - 2 * 2 * 8) / (2 * 2 * 8 * 8 + 2 * 2 * 8))
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


@torch.library.custom_op("mfulab_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def test_a_trace_says_how_much_time_operators_without_a_formula_take():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    x = torch.randn(256, 256)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        torch.ops.mfulab_tests.unknown(x)  # by its own object torch 2.15 records no event of it
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
        return SimpleNamespace(
            name=key, self_cpu_time_total=own, self_device_time_total=on_device, cpu_parent=inside
        )

    events = [event("aten::mm", 700), event("mfulab_tests::unknown", 299), event("other::gone", 1)]
    assert uncounted_operators(Traced(events)) == '{"mfulab_tests::unknown": 29.9}'
    events = [event("aten::mm", 1, 800), event("mfulab_tests::unknown", 999, 200)]
    assert uncounted_operators(Traced(events)) == '{"mfulab_tests::unknown": 20.0}'
    found = uncounted_operators(Traced([event("mfulab_tests::unknown", 5), event("aten::mm", 995)]))
    assert found is None
    assert uncounted_operators(Traced([])) is None
    outer = event("aten::convolution_backward", 10)
    within = event("aten::_slow_conv2d_backward", 90, inside=event("something", 0, inside=outer))
    seen = uncounted_operators(Traced([outer, within]))
    assert seen is None, "its formula stands for whatever it calls"


class Traced:
    def __init__(self, events):
        self.profiler = SimpleNamespace(events=lambda: events)


class TwoTowers(nn.Module):
    """Text goes through one layer, an image, if there is one, through another; a third is
    multiplied by directly."""

    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
        self.text, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, text, image=None):
        seen = text if image is None else text + self.vision(image)
        return nn.functional.linear(self.text(seen), self.head.weight)


def test_modules_that_did_not_run_are_named():
    model, text = TwoTowers(), torch.randn(3, 4)
    without = count(model, lambda: model(text).sum(), fused=False)
    assert without.unused == ("vision",)  # not the head, whose weight was read
    assert (without.certainty.unused, without.certainty.uncounted) == (("vision",), {})
    whole = count(model, lambda: model(text, torch.randn(3, 8)).sum(), fused=False)
    assert whole.certainty.unused == whole.unused == ()
    layers = nn.Module()
    layers.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
    layers.forward = lambda x: layers.blocks[0](x)
    assert count(layers, lambda: layers(text).sum(), fused=False).unused == ("blocks.*",)


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, nn.TransformerEncoderLayer])
def test_weights_that_a_parent_multiplies_by_are_no_unused_modules(kind):
    model, x = kind(8, 2, batch_first=True).eval(), torch.randn(2, 3, 8)
    with torch.no_grad():
        call = (
            (lambda: model(x, x, x)[0].sum())
            if kind is nn.MultiheadAttention
            else (lambda: model(x).sum())
        )
        assert count(model, call, backward=False, fused=False).unused == ()
