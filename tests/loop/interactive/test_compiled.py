"""Compiled loops in a window run as without it, compile nothing anew, with exact FLOPs."""

import itertools
import sys

import pytest
import torch
from torch import distributed, nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as mapped
from torch.utils.checkpoint import checkpoint

import mfulab
from mfulab.loop.interactive import structure

ROWS, WIDTH, LAYERS = 4, 16, 3
ONE = 2 * ROWS * WIDTH * WIDTH
HAND = (3 * LAYERS - 1) * ONE
STEPS = 24
WITH_BODIES = {"cond", "scan", "map"}
"""Forms in which bodies of higher-order operators multiply."""


class Block(nn.Module):
    """A linear layer in one of the forms that a model can have; `super` calls its class's own
    call."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(WIDTH, WIDTH, bias=False), form

    def __call__(self, *given):
        return super().__call__(*given)

    def forward(self, x):
        weight = self.linear.weight
        if self.form == "checkpoint" and x.requires_grad:
            return checkpoint(self.linear, x, use_reentrant=False).relu()
        if self.form == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.linear(x).relu().float()
        if self.form == "cond":
            return torch.cond(
                x.sum() > -1e9, lambda x: x @ weight, lambda x: x.clone(), (x,)
            ).relu()
        if self.form == "scan":
            return scan(lambda carry, x: (carry.clone(), x @ weight), x.new_zeros(1), x[None])[1][
                0
            ].relu()
        if self.form == "map":
            return mapped(lambda x: x @ weight, x[None])[0].relu()
        return self.linear(x).relu()


def model_of(form: str) -> nn.Module:
    model = nn.Sequential(*(Block(form) for _ in range(LAYERS)))
    if form in ("ddp", "fsdp2"):
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    if form == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if form == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def compiled_loop(what: str, form: str):
    """What is measured, and a step of its training; `what` of it is compiled."""

    def compiled(part):
        return torch.compile(part, backend="aot_eager")

    model = model_of(form)
    if what == "block":
        blocks = model.module if form == "ddp" else model
        for block in blocks:
            block.compile(backend="aot_eager")
    if what == "in place":
        model.compile(backend="aot_eager")
    given = compiled(model) if what == "model" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(ROWS, WIDTH)

    def loss():
        return given(inputs).square().mean()

    loss = compiled(loss) if what == "loss" else loss
    if what == "function":
        apply = compiled(lambda x: given(x))

        def loss():
            return apply(inputs).square().mean()

    update = compiled(optimizer.step) if what == "optimizer" else optimizer.step

    def step():
        loss().backward()
        update()
        optimizer.zero_grad()

    return given, (compiled(step) if what == "step" else step)


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


WHAT = ["nothing", "model", "in place", "block", "function", "loss", "step", "optimizer"]
FORMS = ["eager", "ddp", "fsdp2", "checkpoint", "autocast", "cond", "scan", "map"]
SHORT = {("model", "eager"), ("function", "cond")}


@pytest.mark.parametrize(
    ("what", "form"),
    [
        pytest.param(what, form, marks=() if (what, form) in SHORT else pytest.mark.slow)
        for what, form in itertools.product(WHAT, FORMS)
    ],
)
def test_a_compiled_loop_runs_and_compiles_nothing_inside_a_window(what, form):
    torch._dynamo.reset()
    torch.manual_seed(0)
    given, step = compiled_loop(what, form)
    try:
        for _ in range(4):
            step()
    except Exception as error:
        pytest.skip(f"torch itself cannot: {type(error).__name__}")
    before = graphs()
    with mfulab.measure(given, quiet=True, ceiling_s=0) as window:
        for _ in range(STEPS):
            step()
            window.step()
    # The counted step alone may compile: bodies of higher-order operators.
    assert graphs() == before or form in WITH_BODIES
    assert (window.row["compiled_steps"], window.row["flops"]) == (0, HAND)
    assert window.row["counted_steps"] <= 3


def test_compiled_code_that_is_guarded_against_hooks_meets_none(monkeypatch):
    # As torch 2.14 and later guard layers that call `super().__call__`; earlier ones name these
    # hooks without a guard.
    monkeypatch.setattr(structure, "_GUARD", "_global_forward_pre_hooks")
    torch._dynamo.reset()
    model, inputs = Block("eager"), torch.randn(ROWS, WIDTH)
    loss = torch.compile(lambda: model(inputs).square().mean(), backend="aot_eager")
    loss().backward()
    hooks = []
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for _ in range(STEPS):
            if not window._loop.phases.counting:  # else nothing runs compiled
                hooks += [*nn.modules.module._global_forward_pre_hooks, *model._forward_pre_hooks]
            loss().backward()
            window.step()
    assert not hooks
    assert window.row["flops"] == 2 * ONE


def test_a_loop_that_compiles_in_its_first_step_has_few_counted_ones():
    torch._dynamo.reset()
    model, inputs = Block("map"), torch.randn(ROWS, WIDTH)
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for _ in range(12):
            model(inputs).square().mean().backward()
            window.step()
    assert window.row["flops"] == 2 * ONE
    assert window.row["counted_steps"] <= 3


def test_what_compiles_inside_a_window_is_left_out_and_named():
    torch._dynamo.reset()
    model = nn.Sequential(*(Block("eager") for _ in range(LAYERS)))
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    inputs = [torch.randn(rows, WIDTH) for rows in (ROWS, ROWS + 1)]
    with torch.no_grad():
        compiled(inputs[0])
    with torch.no_grad(), mfulab.measure(compiled, quiet=True, ceiling_s=0) as window:
        for turn in range(40):
            compiled(inputs[turn == 30])
            window.step()
    assert window.row["compiled_steps"] >= 1
    assert "31" in window.row["compiled_places"]
    assert not [
        step
        for step in window._steps
        if step.compiled and step.cost and step.cost.model != LAYERS * ONE
    ]
    before = graphs()
    for each in inputs:
        with torch.no_grad():
            compiled(each)
    assert graphs() == before, "compiled code holds nothing of the window"


def test_a_compiled_function_that_calls_the_model_in_a_decorated_step():
    torch._dynamo.reset()
    model = nn.Linear(WIDTH, WIDTH)
    loss = torch.compile(lambda x: model(x).square().mean(), backend="aot_eager")
    inputs = torch.randn(ROWS, WIDTH)

    @mfulab.measured(model=model, steps=20, quiet=True, ceiling_s=0)
    def step():
        loss(inputs).backward()

    for _ in range(30):
        step()
    assert step.window.row["flops"] == 2 * ONE


def test_no_class_of_torch_is_changed_and_nothing_is_imported_for_a_loop_at_rest():
    model, inputs = nn.Linear(WIDTH, WIDTH), torch.randn(ROWS, WIDTH)
    call = nn.Module.__call__
    with torch.no_grad(), mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for _ in range(STEPS):
            model(inputs)
            window.step()
            assert nn.Module.__call__ is call
        assert not model._forward_pre_hooks or window._loop.unwatched.calls, (
            "but one hook that looks"
        )
        assert not nn.modules.module._global_forward_pre_hooks
        engine = sys.modules["torch.autograd.graph"]._engine_run_backward
        assert torch.autograd._engine_run_backward is engine
    assert window.row["flops"] == ONE


def compiled_gan(loss=lambda x: x.sum()):
    generator, critic = (torch.compile(nn.Linear(8, 8), backend="aot_eager") for _ in range(2))

    def step():
        made = generator(torch.randn(4, 8))
        (loss(critic(torch.randn(4, 8))) + loss(critic(made.detach()))).backward()
        loss(critic(made)).backward()

    # The generator once forward, once backward; the critic three times, its input once.
    return [generator, critic], step, (2 + 3 * 2 + 1) * 2 * 4 * 8 * 8


def compiled_twice_in_a_row():
    """A model of its own output, so that one call needs a gradient of its input."""
    model = torch.compile(nn.Linear(8, 8), backend="aot_eager")
    return [model], lambda: model(model(torch.randn(4, 8))).sum().backward(), 5 * 2 * 4 * 8 * 8


@pytest.mark.parametrize("kind", [compiled_gan, compiled_twice_in_a_row])
def test_a_compiled_model_called_several_times_a_step_is_counted_once(kind):
    models, step, flops = kind()
    for _ in range(4):
        step()
    with mfulab.measure(models, ceiling_s=0, quiet=True) as window:
        for _ in range(8):
            step()
            window.step()
    assert window.row["flops"] == flops
    assert window.row["counted_steps"] == 1


@pytest.mark.parametrize("every", [1, 3])
def test_the_module_beside_its_compiled_twin_is_followed_too(every):
    module = nn.Linear(8, 8)
    model = torch.compile(module, backend="aot_eager")
    by_hand = []

    def step(turn):
        model(torch.randn(4, 8)).sum().backward()
        evaluates = turn % every == 0
        if evaluates:
            with torch.no_grad():
                module.eval()(torch.randn(16, 8))
            module.train()
        by_hand.append(2 * 2 * 4 * 8 * 8 + evaluates * 2 * 16 * 8 * 8)

    step(0)
    by_hand.clear()
    with mfulab.measure(model, ceiling_s=0, quiet=True) as window:
        for turn in range(30):
            step(turn)
            window.step()
    found = [one.cost and one.cost.model for one in window._steps]
    assert found == by_hand
    assert {one.samples for one in window._steps} == {4}
