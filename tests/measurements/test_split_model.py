"""A model split over ranks computes what the whole one does, sends what the formula says, and cannot
be cut where its layers do not allow it."""

import pytest
import torch
from pydantic import ValidationError
from support.said import refused
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.measurements.split_model import SplitModelConfig
from mfulab.measurements.split_model.measure import bubble_percent, idle_percent, measure
from mfulab.models import layers_on_ranks
from mfulab.models.pruning import perceptron

WIDTH, HIDDEN, SAMPLES = 32, 64, 16


def config(split: str, micro_batches: int = 1, **more: object) -> SplitModelConfig:
    model = {
        "name": "small",
        "_target_": "mfulab.models.pruning.perceptron",
        "arguments": {"width": WIDTH, "hidden": HIDDEN, "depth": 2},
        "input_shape": [WIDTH],
    }
    return SplitModelConfig(
        **{
            "model": ModelConfig.model_validate(model | more),
            "batch_size": SAMPLES,
            "split": split,
            "micro_batches": micro_batches,
            "device": {"type": "cpu"},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "micro_batches", "sent"),
    [
        ("none", 1, 0),
        # Two sums forward, one backward, each 2·n·(d − 1) ÷ d of n bytes over d ranks.
        ("tensor", 1, 3 * 2 * 4 * SAMPLES * WIDTH / 2),
        # One cut: activations forward by one rank, gradients back by the other.
        ("pipeline", 4, 4 * SAMPLES * WIDTH),
    ],
)
def test_gradients_are_the_whole_model_s_and_bytes_the_formula_s(
    tmp_path, split, micro_batches, sent
):
    measured = measure(config(split, micro_batches), tmp_path)
    row = measured.row
    assert row.difference < 1e-5
    assert row.predicted_sent_bytes == sent
    assert row.sent_bytes >= sent  # the interface counts headers, and what other programs send
    assert row.ranks == (1 if split == "none" else 2)
    assert len(measured.samples) == row.ranks * 25
    assert row.speedup == pytest.approx(row.alone_s / row.time_s)


def test_flops_of_the_rank_that_computes_most():
    model = perceptron(WIDTH, HIDDEN, 2)
    product = 2 * SAMPLES * WIDTH * HIDDEN
    from mfulab.measurements.split_model.measure import _flops, _rank_flops

    with torch.device("meta"):
        model = model.to("meta")
        whole = _flops(model, torch.randn(SAMPLES, WIDTH))
    assert whole == (3 * 4 - 1) * product  # the first product needs no gradient of its inputs
    assert _rank_flops(config("tensor"), model, 2) == whole / 2
    assert _rank_flops(config("pipeline"), model, 2) == 3 * 2 * product


@pytest.mark.parametrize(("micro_batches", "ranks", "share"), [(1, 2, 50), (4, 4, 300 / 7)])
def test_bubble_of_a_pipeline(micro_batches, ranks, share):
    assert bubble_percent(config("pipeline", micro_batches), ranks) == pytest.approx(share)
    assert bubble_percent(config("tensor"), ranks) is None


def test_what_cannot_be_cut_is_said():
    uneven = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with refused(UnsupportedError, "split_no_multiple", layers=3, stages=2):
        layers_on_ranks.stage(uneven, 0, 2)
    with refused(UnsupportedError, "split_needs_pairs", layers=1):
        layers_on_ranks.linear_pairs(nn.Sequential(nn.Linear(4, 4)))
    with refused(UnsupportedError, "split_no_sequential"):
        layers_on_ranks.linear_pairs(nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("split", "micro_batches", "says"),
    [("tensor", 2, "only a pipeline"), ("pipeline", 5, "give a multiple")],
)
def test_keys_that_do_not_go_together_are_refused(split, micro_batches, says):
    with pytest.raises(ValidationError, match=says):
        config(split, micro_batches)


def test_stages_share_the_models_layers_and_their_names():
    model = perceptron(WIDTH, HIDDEN, 2)
    stages = [layers_on_ranks.stage(model, rank, 2) for rank in range(2)]
    names = [name for each in stages for name, _ in each.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]
    assert stages[1][0] is model[3]


@pytest.mark.parametrize(
    ("step_s", "busy_s", "ranks", "idle"),
    [(2.0, 1.5, 2, 25.0), (2.0, 2.0, 2, 0.0), (2.0, 2.1, 2, None), (2.0, 1.0, 1, None)],
)
def test_what_did_not_wait_has_no_idle_share(step_s, busy_s, ranks, idle):
    """Below zero the row could not be read."""
    assert idle_percent(step_s, busy_s, ranks) == idle
