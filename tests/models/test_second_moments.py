"""Exact zeros in the second moments of optimisers: states with known zeros, and states without
moments."""

import itertools
import math
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from mfulab.models.second_moments import zeros_percent

ADAMS = (torch.optim.Adam, torch.optim.AdamW)
IMPLEMENTATIONS = ("default", "foreach", "fused")


def made(kind, implementation, gradients):
    """An optimiser after one step with the given gradients, one list for each parameter."""
    parameters = []
    for values in gradients:
        parameter = torch.nn.Parameter(torch.ones(len(values)))
        parameter.grad = torch.tensor(values)
        parameters.append(parameter)
    options = {} if implementation == "default" else {implementation: True}
    optimizer = kind(parameters, lr=1e-3, **options)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ADAMS)
def test_weights_without_gradient_keep_an_exact_zero(kind, implementation):
    optimizer = made(kind, implementation, [[0.0, 1.0, 0.0, -2.0], [0.0], [3.0, 1e-3, 5.0]])
    assert zeros_percent(optimizer) == 100 * 3 / 8
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert zeros_percent(optimizer) == 0


@pytest.mark.parametrize("kind", ADAMS)
def test_a_square_that_underflows_is_a_zero_and_a_subnormal_one_is_none(kind):
    optimizer = made(kind, "default", [[1e-30, 1e-18, 1.0, 1.0]])
    moments = optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg_sq"]
    assert 0 < moments[1] < torch.finfo(torch.float32).smallest_normal
    assert zeros_percent(optimizer) == 25


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_keeps_no_second_moments(implementation, momentum):
    def sgd(parameters, **options):
        return torch.optim.SGD(parameters, momentum=momentum, **options)

    assert zeros_percent(made(sgd, implementation, [[0.0, 1.0]])) is None


def test_before_the_first_step_and_without_gradients_nothing_is_known():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    assert zeros_percent(optimizer) is None
    optimizer.step()  # of no gradient
    assert zeros_percent(optimizer) is None


def test_of_an_empty_parameter_no_share_is_known():
    assert zeros_percent(made(torch.optim.Adam, "default", [[]])) is None


def test_of_a_sharded_state_the_shard_held_here_counts():
    shard = torch.tensor([0.0, 1.0, 0.0, 0.0])
    sharded = SimpleNamespace(to_local=lambda: shard)
    optimizer = SimpleNamespace(state={"weight": {"exp_avg_sq": sharded}})
    assert zeros_percent(optimizer) == 75


@given(st.lists(st.lists(st.sampled_from([0.0, 1e-40, 1.0, -3.0, math.nan]), max_size=5)))
def test_a_share_lies_between_0_and_100_and_counts_each_value_once(states):
    optimizer = SimpleNamespace(
        state={
            place: {"step": torch.tensor(0.0), "exp_avg_sq": torch.tensor(values)}
            for place, values in enumerate(states)
        }
    )
    everything = list(itertools.chain.from_iterable(states))
    share = zeros_percent(optimizer)
    if share is None:
        assert everything == []
        return
    assert 0 <= share <= 100
    assert share == 100 * everything.count(0.0) / len(everything)
