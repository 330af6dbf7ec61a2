"""Attention written as matmuls: masks on the scores say which pairs count, by hand."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from mfulab.flops.count import count
from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.flops.values import KnownValues

HEADS, TOKENS, WIDTH, WINDOW = 2, 100, 8, 10
PAIR = 4 * HEADS * WIDTH


class Written(nn.Module):
    """Attention of [1, HEADS, TOKENS, WIDTH] by two products, its mask laid on the scores in one of
    several ways."""

    def __init__(self, how: str, window: int = TOKENS) -> None:
        super().__init__()
        self.how, self.scale = how, nn.Parameter(torch.ones(()))
        place = torch.arange(TOKENS)
        distance = place[:, None] - place
        self.register_buffer("sees", (distance >= 0) & (distance < window), persistent=False)

    def forward(self, query, key, value):
        scores = (query @ key.transpose(-1, -2)) * self.scale
        if self.how == "added":
            scores = scores + torch.where(self.sees, 0.0, -1e30)
        elif self.how == "filled":
            scores = scores.masked_fill(~self.sees[None, None], float("-inf"))
        elif self.how == "chosen":
            scores = torch.where(self.sees, scores, torch.tensor(-1e30, device=scores.device))
        return torch.dropout(scores.float().softmax(-1), 0.1, self.training) @ value


def counted(model: nn.Module, device: str, tokens: int = TOKENS):
    with torch.device(device), KnownValues() if device == "meta" else nullcontext():
        made = model()
        inputs = [torch.ones(1, HEADS, tokens, WIDTH, requires_grad=True) for _ in range(3)]
        return count(made, lambda: made(*inputs).sum(), fused=device == "meta")


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("how", ["added", "filled", "chosen"])
def test_a_window_and_the_causal_half_count_in_both_passes(how, device):
    found = counted(lambda: Written(how, WINDOW), device)
    operations = found.operations
    attended = sum(min(row + 1, WINDOW) for row in range(TOKENS))
    for direction, times in (("forward", 1), ("backward", 2)):
        total = operations.sum(direction)
        assert total.flops == total.attention_flops == times * PAIR * TOKENS * WINDOW
        assert total.causal_flops == times * PAIR * attended
        assert total.executed_flops == times * PAIR * TOKENS**2
    assert not found.certainty.bound_share


def test_a_triangle_is_half_of_its_square_and_no_mask_leaves_it_whole():
    causal, whole = (
        counted(lambda how=how: Written(how), "meta").operations.sum("forward")
        for how in ("added", "")
    )
    assert causal.flops == whole.flops == whole.causal_flops == PAIR * TOKENS**2
    assert causal.causal_flops == PAIR * TOKENS**2 / 2


def test_a_mask_without_values_makes_an_upper_bound():
    with torch.device("meta"):  # which keeps none
        model = Written("added", WINDOW)
        inputs = [torch.ones(1, HEADS, TOKENS, WIDTH) for _ in range(3)]
        found = count(model, lambda: model(*inputs).sum())
    assert found.operations.sum("forward").flops == PAIR * TOKENS**2
    assert found.certainty.bound_share == 1


def test_a_backward_pass_whose_forward_pass_was_not_seen_costs_the_same():
    layers = nn.Sequential(*(Written("filled", window) for window in (WINDOW, TOKENS)))
    inputs = [torch.ones(1, HEADS, TOKENS, WIDTH, requires_grad=True) for _ in range(3)]

    def loss():
        return sum(layer(*inputs).sum() for layer in layers)

    with OperatorCounter(LayerTracker(layers), memory=False):
        loss()
    later = loss()
    with OperatorCounter(LayerTracker(layers), memory=False) as counter:
        later.backward()
    assert counter.operations.sum("backward").flops == 2 * PAIR * TOKENS * (WINDOW + TOKENS)


def test_a_softmax_that_lies_on_no_product_and_products_without_one_are_left_alone():
    class Other(nn.Module):
        def forward(self, query, key, value):
            mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=query.device).tril()
            gates = (torch.ones(TOKENS, TOKENS, device=query.device).masked_fill(~mask, 0)).softmax(
                -1
            )
            return (query @ key.transpose(-1, -2)) @ value + gates.sum()

    assert counted(Other, "meta").operations.sum("forward").causal_flops == PAIR * TOKENS**2
