"""Loops of unusual kinds: FLOPs of each step by hand, losses bit by bit as without a window."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

import mfulab

ROWS, WIDTH = 4, 16
ONE = 2 * ROWS * WIDTH * WIDTH
STEPS = 12

Step = Callable[[int], tuple[int, torch.Tensor]]
Made = tuple[Step, list[nn.Module]]
LOOPS: list[Callable[[], Made]] = []


def loop(make: Callable[[], Made]) -> Callable[[], Made]:
    """Adds a loop: a step by its number, which gives its FLOPs by hand and its loss; its models."""
    LOOPS.append(make)
    return make


def x() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH)


def linear(bias: bool = True) -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, bias=bias)


@loop
def two_tasks_by_turns_with_a_trunk_of_both() -> Made:
    trunk, heads = linear(), [linear(), nn.Linear(WIDTH, 2 * WIDTH)]
    optimizers = [torch.optim.SGD([*trunk.parameters(), *head.parameters()]) for head in heads]

    def step(turn: int) -> tuple[int, torch.Tensor]:
        which = turn % 2
        loss = heads[which](trunk(x())).square().mean()
        optimizers[which].zero_grad()
        loss.backward()
        optimizers[which].step()
        return 2 * ONE + 3 * ONE * (1 + which), loss

    return step, [trunk, *heads]


@loop
def gradients_of_each_sample_by_torch_func() -> Made:
    model = linear()
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def of_one(given: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return functional_call(model, given, (sample,)).square().sum()

    def step(turn: int) -> tuple[int, torch.Tensor]:
        found = vmap(grad(of_one), in_dims=(None, 0))(weights, x())
        for name, gradient in found.items():
            weights[name] = weights[name] - 0.01 * gradient.mean(0)
        return 2 * ONE, weights["weight"].sum()

    return step, [model]


@loop
def a_checkpoint_around_a_compiled_block() -> Made:
    torch._dynamo.reset()
    first, block = linear(), torch.compile(linear(), backend="aot_eager")
    checkpoint(block, first(x()), use_reentrant=False).sum().backward()

    def step(turn: int) -> tuple[int, torch.Tensor]:
        loss = checkpoint(block, first(x()), use_reentrant=False).square().mean()
        loss.backward()
        return 5 * ONE, loss

    return step, [first, block]


@loop
def averaged_weights_that_are_evaluated() -> Made:
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.Adam(model.parameters())

    def step(turn: int) -> tuple[int, torch.Tensor]:
        loss = model(x()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
        if turn % 3:
            return 5 * ONE, loss
        with torch.no_grad():
            return 7 * ONE, loss.detach() + averaged(x()).mean()

    return step, [model, averaged]


@loop
def an_inner_step_that_the_outer_gradient_goes_through() -> Made:
    model = linear(bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(turn: int) -> tuple[int, torch.Tensor]:
        inner = model(x()).square().mean()
        (gradient,) = torch.autograd.grad(inner, [model.weight], create_graph=True)
        fast = model.weight - 0.1 * gradient
        loss = nn.functional.linear(x(), fast).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Forward twice, both gradients, and the first one's own two.
        return 6 * ONE, loss

    return step, [model]


@loop
def lbfgs_that_searches_along_a_line() -> Made:
    model = linear()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=3, history_size=2, line_search_fn="strong_wolfe"
    )

    def step(turn: int) -> tuple[int, torch.Tensor]:
        inputs, targets = x(), x()
        calls = 0

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        return calls * 2 * ONE, loss

    return step, [model]


class Int8(nn.Module):
    """A layer of whole numbers."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        weight = (self.layer.weight.t() * 64).round().clamp(-127, 127).to(torch.int8)
        given = (inputs * 16).round().clamp(-127, 127).to(torch.int8)
        return torch._int_mm(given, weight.contiguous()).float()


@loop
def an_evaluation_in_int8() -> Made:
    model = linear()
    rounded = Int8(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(turn: int) -> tuple[int, torch.Tensor]:
        loss = model(x()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if turn % 2:
            return 2 * ONE, loss
        with torch.no_grad():
            return 3 * ONE, loss.detach() + rounded(x()).mean()

    return step, [model, rounded]


@loop
def weights_made_by_another_model() -> Made:
    maker = nn.Linear(8, WIDTH * WIDTH)

    def step(turn: int) -> tuple[int, torch.Tensor]:
        weight = maker(torch.randn(1, 8)).view(WIDTH, WIDTH)
        loss = nn.functional.linear(x(), weight).square().mean()
        maker.zero_grad()
        loss.backward()
        with torch.no_grad():
            for value in maker.parameters():
                value -= 0.01 * value.grad
        return 2 * 2 * 8 * WIDTH * WIDTH + 2 * ONE, loss

    return step, [maker]


@loop
def a_fixed_point_after_some_turns_without_gradients() -> Made:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(turn: int) -> tuple[int, torch.Tensor]:
        state = x()
        turns = 2 + turn % 3
        with torch.no_grad():
            for _ in range(turns):
                state = torch.tanh(model(state))
        loss = torch.tanh(model(state)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return (turns + 2) * ONE, loss

    return step, [model]


@loop
def four_calls_of_a_runge_kutta_step() -> Made:
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(turn: int) -> tuple[int, torch.Tensor]:
        state = x()
        first = model(state)
        second = model(state + first / 2)
        third = model(state + second / 2)
        fourth = model(state + third)
        loss = (state + (first + 2 * second + 2 * third + fourth) / 6).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return (4 + 4 + 3) * ONE, loss

    return step, [model]


@loop
def tangents_by_forward_mode() -> Made:
    model = linear()

    def step(turn: int) -> tuple[int, torch.Tensor]:
        with torch.no_grad():
            value, tangent = jvp(model, (x(),), (x(),))
        return 2 * ONE, value.mean() + tangent.mean()

    return step, [model]


@loop
def saved_tensors_that_wait_elsewhere() -> Made:
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(turn: int) -> tuple[int, torch.Tensor]:
        with torch.autograd.graph.save_on_cpu():
            loss = model(x()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return 5 * ONE, loss

    return step, [model]


def run(make: Callable[[], Made], is_measured: bool) -> tuple[list[float], object, list[int]]:
    """Losses of a loop, its window where it is measured, and FLOPs of its steps by hand."""
    torch.manual_seed(0)
    step, models = make()
    losses, by_hand = [], []
    with (
        mfulab.measure(models, quiet=True, ceiling_s=0) if is_measured else nullcontext() as window
    ):
        for turn in range(STEPS):
            flops, loss = step(turn)
            losses.append(loss.item())
            by_hand.append(flops)
            if window is not None:
                window.step()
    return losses, window, by_hand


def check(make: Callable[[], Made]) -> None:
    plain, _, _ = run(make, is_measured=False)
    losses, window, by_hand = run(make, is_measured=True)
    assert losses == plain
    counted = [step.cost and step.cost.model for step in window._steps]
    assert counted == by_hand, window._loop.phases.failure


@pytest.mark.parametrize("make", LOOPS, ids=lambda make: make.__name__)
def test_flops_are_those_by_hand_and_losses_those_without_a_window(make):
    check(make)


def test_a_training_in_a_thread_of_a_pool():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(check, averaged_weights_that_are_evaluated).result()
