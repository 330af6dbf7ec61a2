"""Pruning: how many weights are left, units that change nothing else, and what it refuses."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.models import pruning
from mfulab.models.build import build
from mfulab.models.counted import count_model

PERCEPTRON = {
    "name": "perceptron",
    "_target_": "mfulab.models.pruning.perceptron",
    "arguments": {"width": 16, "hidden": 32, "depth": 2},
    "input_shape": [16],
}


def config(kind: str, share: float, **changes) -> ModelConfig:
    return ModelConfig(**{**PERCEPTRON, **changes}, pruning=kind, pruned_share=share)


@pytest.mark.parametrize(
    ("kind", "share"), [("masked", 0.3), ("masked", 0.9), ("two_of_four", 0.5)]
)
def test_a_mask_leaves_its_share_and_the_largest_weights(kind, share):
    torch.manual_seed(0)
    whole = build(ModelConfig(**PERCEPTRON))
    torch.manual_seed(0)
    pruned = build(config(kind, share))
    for before, after in zip(whole, pruned, strict=True):
        if isinstance(before, nn.Linear):
            zero = after.weight == 0
            assert zero.float().mean() == pytest.approx(share, abs=0.01)
            assert torch.equal(after.weight[~zero], before.weight[~zero])
            if kind == "masked":
                assert before.weight[zero].abs().max() <= before.weight[~zero].abs().min()
            else:
                assert (zero.reshape(-1, 4).sum(1) == 2).all()


def test_units_that_are_taken_out_are_those_that_a_mask_would_silence():
    torch.manual_seed(0)
    whole = pruning.perceptron(16, 32, 1)
    weakest = whole[0].weight.norm(dim=1).argsort()[:24]
    inputs = torch.randn(5, 16)
    with torch.no_grad():
        whole[2].weight[:, weakest] = 0
        expected = whole(inputs)
        torch.manual_seed(0)
        slim = build(config("structured", 0.75, arguments={"width": 16, "hidden": 32, "depth": 1}))
        found = [tuple(layer.weight.shape) for layer in slim if isinstance(layer, nn.Linear)]
        assert found == [(8, 16), (16, 8)]
        torch.testing.assert_close(slim(inputs), expected)


def test_flops_fall_with_units_and_not_with_masks():
    counts = {
        kind: count_model(config(kind, 0.5), 3).count
        for kind in ("masked", "structured", "two_of_four")
    }
    flops = {kind: found.operations.sum("forward").flops for kind, found in counts.items()}
    assert flops["masked"] == flops["two_of_four"] == 2 * 2 * 2 * 3 * 16 * 32
    assert flops["structured"] == flops["masked"] / 2


@pytest.mark.parametrize(
    ("kind", "target", "arguments", "said"),
    [
        (
            "structured",
            "torch.nn.Linear",
            {"in_features": 16, "out_features": 4},
            "no two linear layers",
        ),
        ("masked", "torch.nn.ReLU", {}, "no linear layer"),
        ("two_of_four", "torch.nn.Linear", {"in_features": 18, "out_features": 4}, "18 inputs"),
    ],
)
def test_a_model_that_cannot_be_pruned_says_why(kind, target, arguments, said):
    with pytest.raises(UnsupportedError, match=said):
        build(config(kind, 0.5, _target_=target, arguments=arguments))


@pytest.mark.parametrize(
    ("kind", "share"), [("none", 0.5), ("two_of_four", 0.3), ("masked", 1.0), ("half", 0.5)]
)
def test_shares_that_mean_nothing_are_refused(kind, share):
    with pytest.raises(ValidationError, match="prun"):
        config(kind, share)


def test_two_of_four_needs_a_gpu():
    with pytest.raises(UnsupportedError, match="NVIDIA GPU"):
        pruning.compress(build(config("two_of_four", 0.5)))
