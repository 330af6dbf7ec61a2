"""Gradients of two layers, derived by hand, against autograd; their products are the FLOPs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mfulab.flops.count import count

SIDES = st.integers(1, 9)


def by_hand(x, w1, b1, w2, b2, targets):
    """Mean squared error of W₂·relu(W₁·x + b₁) + b₂, its gradients by the chain rule, and the
    products' FLOPs.

    Backward a layer multiplies twice: its output's gradient by its input for its weights, and by
    its weights for its input. The first layer's input needs no gradient.
    """
    before = x @ w1.T + b1
    hidden = np.maximum(before, 0)
    error = hidden @ w2.T + b2 - targets
    to_output = 2 * error / error.size
    to_hidden = (to_output @ w2) * (before > 0)
    gradients = to_hidden.T @ x, to_hidden.sum(0), to_output.T @ hidden, to_output.sum(0)
    batch, (wide, ins), outs = len(x), w1.shape, len(w2)
    first, second = 2 * batch * ins * wide, 2 * batch * wide * outs
    return (error**2).mean(), gradients, first + second, first + 2 * second


@given(SIDES, SIDES, SIDES, SIDES, st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_autograd_gives_the_chain_rule_s_and_the_counter_its_products(batch, ins, wide, outs, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(ins, wide), nn.ReLU(), nn.Linear(wide, outs)).double()
    inputs, targets = torch.randn(batch, ins).double(), torch.randn(batch, outs).double()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    held = [each.detach().numpy() for each in (inputs, *model.parameters(), targets)]
    expected, gradients, forward, backward = by_hand(*held)
    assert loss.item() == pytest.approx(expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        np.testing.assert_allclose(parameter.grad.numpy(), gradient, rtol=1e-9, atol=1e-12)
    operations = count(model, lambda: nn.functional.mse_loss(model(inputs), targets)).operations
    found = (operations.sum("forward").flops, operations.sum("backward").flops)
    assert found == (forward, backward)


def test_a_unit_that_is_off_gets_no_gradient():
    one = np.ones((1, 1))
    _, gradients, _, _ = by_hand(one, -one, np.zeros(1), one, np.zeros(1), one)
    assert [float(each.item()) for each in gradients[:3]] == [0, 0, 0]
    assert gradients[3].item() == -2
