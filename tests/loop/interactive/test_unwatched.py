"""Steps that nothing watches: which loops rest, their cost, and what a change does."""

import gc

import pytest
import torch
from torch import nn

import mfulab
from mfulab.loop.interactive import unwatched
from mfulab.loop.interactive.phases import HOOK_S
from mfulab.loop.interactive.unwatched import ENOUGH, ENOUGH_FORWARDS

ROWS, WIDTH, STEPS = 4, 16, 120
ONE = 2 * ROWS * WIDTH * WIDTH


def window_of(step, model, steps=STEPS, explicit=True):
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for turn in range(steps):
            step(turn)
            if explicit:
                window.step()
    return window


def costs(window):
    return [step.cost and step.cost.model for step in window._steps]


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_loop_whose_steps_are_alike_rests_and_every_step_has_its_cost(explicit, training):
    model = nn.Linear(WIDTH, WIDTH)

    def step(turn):
        with torch.set_grad_enabled(training):
            found = model(torch.ones(ROWS, WIDTH)).sum()
        if training:
            found.backward()

    window = window_of(step, model, explicit=explicit)
    steps = window._steps
    assert set(costs(window)) == {(1 + training) * ONE}
    assert {step.samples for step in steps} == {ROWS}
    resting = sum(not step.watched for step in steps)
    assert resting > STEPS - 3 * (ENOUGH if explicit else ENOUGH_FORWARDS)
    seen = window.row["steps"] + window.row["counted_steps"] + window.row["watched_steps"]
    assert seen == len(steps)
    assert 0 < window.row["measuring_percent"] < 100
    spent_s = window.row["measuring_percent"] / 100 * window.row["window_s"] / window.row["steps"]
    assert explicit or spent_s > 0.9 * HOOK_S, "without step() a hook stays on the model"


@pytest.mark.parametrize("explicit", [True, False])
def test_measuring_takes_no_more_than_the_steps_that_it_slows_also_in_a_window_used_again(explicit):
    model = nn.Linear(WIDTH, WIDTH)
    window = mfulab.measure(model, quiet=True, ceiling_s=0)
    for _ in range(3):
        with torch.no_grad(), window:
            for _ in range(6):
                model(torch.ones(ROWS, WIDTH))
                if explicit:
                    window.step()
        assert 0 < window.row["measuring_percent"] < 100
        assert window.row["watched_steps"] == 0


def test_steps_that_were_all_counted_say_so_and_measuring_has_no_share_of_them():
    model = nn.Linear(WIDTH, WIDTH)
    window = window_of(lambda turn: model(torch.ones(ROWS + turn, WIDTH)), model, steps=4)
    row = window.row
    assert (row["only_counted"], row["watched_steps"], row["measuring_percent"]) == (4, 0, None)
    assert "only_counted" in {flag.key for flag in window.verdict.flags}


def test_a_check_that_falls_on_a_count_leaves_the_steps_before_it_their_cost(monkeypatch):
    monkeypatch.setattr(unwatched, "CHECK_S", 0.0)
    model = nn.Linear(WIDTH, WIDTH)
    assert set(
        costs(window_of(lambda turn: model(torch.ones(ROWS, WIDTH)).sum().backward(), model))
    ) == {2 * ONE}


@pytest.mark.parametrize(
    ("other", "flops"),
    [
        (lambda model: model(torch.ones(ROWS, WIDTH)).relu().sum().backward(), 2 * ONE),
        (
            lambda model: [model(torch.ones(ROWS, WIDTH)).sum().backward() for _ in range(2)],
            4 * ONE,
        ),
        (lambda model: model(model(torch.ones(ROWS, WIDTH))).sum().backward(), 5 * ONE),
    ],
)
def test_a_step_of_another_graph_while_nothing_watches_has_its_cost_or_none(other, flops):
    model = nn.Linear(WIDTH, WIDTH)

    def step(turn):
        other(model) if turn in (50, 51, 90) else model(torch.ones(ROWS, WIDTH)).sum().backward()

    found = costs(window_of(step, model))
    assert len(found) == STEPS
    assert all(found[turn] in (flops, None) for turn in (50, 51, 90))
    assert {cost for turn, cost in enumerate(found) if turn not in (50, 51, 90)} <= {2 * ONE, None}
    assert found.count(None) < 8


def test_steps_that_a_check_finds_otherwise_have_no_cost():
    model = nn.Linear(WIDTH, WIDTH)
    looks = []

    @torch.no_grad()
    def step(turn):
        steps = window._loop.unwatched
        if steps is not None and turn < 60:
            steps.calls = None  # as where looking costs too much
        if turn == 60:
            looks.append(steps.ticks)
            steps._most = steps.ticks + 20
        model(torch.ones(ROWS if turn < 60 else 2 * ROWS, WIDTH))

    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for turn in range(STEPS):
            step(turn)
            window.step()
    found = costs(window)
    assert looks[0] > 0
    assert all(cost in (ONE, None) for cost in found[:60])
    assert all(cost in (2 * ONE, None) for cost in found[60:])
    assert found[-1] == 2 * ONE


def test_lengths_that_change_are_watched_all_along():
    model = nn.Linear(WIDTH, WIDTH)

    def step(turn):
        model(torch.ones(1 + turn % 7, WIDTH)).sum().backward()

    window = window_of(step, model)
    by_hand = [2 * 2 * (1 + turn % 7) * WIDTH * WIDTH for turn in range(STEPS)]
    assert all(pair[0] == pair[1] for pair in zip(costs(window), by_hand, strict=True))


def test_a_hook_that_updates_weights_in_the_backward_pass_is_an_optimizer():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))

    def update(weight):
        with torch.no_grad():
            weight.sub_(1e-9 * (weight.grad @ weight.grad.T @ weight.grad))
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)
    window = window_of(lambda turn: model(torch.ones(ROWS, WIDTH)).sum().backward(), model, steps=6)
    assert window.row["flops"] == 5 * ONE


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_batch_is_described_by_its_rows(layout):
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    batch = torch.nested.nested_tensor(
        [torch.randn(3, WIDTH), torch.randn(5, WIDTH)], layout=layout
    )

    @torch.no_grad()
    def step(turn):
        model(batch)

    window = window_of(step, model, steps=4)
    flops, reason = window.row["flops"], window.readings["flops"].reason
    assert flops == 2 * 8 * WIDTH * WIDTH or (flops is None and reason and layout == torch.strided)
    assert window.row["time_s"] > 0


def test_a_loop_at_rest_makes_no_garbage():
    model, inputs = nn.Linear(WIDTH, WIDTH), torch.ones(ROWS, WIDTH)
    with torch.no_grad(), mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for _ in range(50):
            model(inputs)
            window.step()
        steps = window._loop.unwatched
        steps._most = 10**6
        gc.collect()
        gc.disable()
        before = len(gc.get_objects())
        for _ in range(500):
            model(inputs)
            window.step()
        made = len(gc.get_objects()) - before
        gc.enable()
        assert window._loop.unwatched is steps
    assert made < 50
