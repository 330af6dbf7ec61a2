"""Higher-order operators inside a model: bodies are counted as often as they run."""

import subprocess
import sys

import pytest
import torch
from support.said import keys, numbers
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.out_dtype import out_dtype

from mfulab.flops.count import CountError, count
from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.flops.values import KnownValues

STEPS, ROWS, WIDTH = 5, 3, 8
BODY = 2 * ROWS * WIDTH * WIDTH


class Looped(nn.Module):
    """A linear layer over [STEPS, ROWS, WIDTH], then a loop or branch whose body multiplies by a
    closed-over weight."""

    def __init__(self, how: str, times: int = 4) -> None:
        super().__init__()
        self.how, self.times = how, times
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        x, weight = self.linear(x), self.weight
        if self.how == "scan":
            return scan(
                lambda h, x: (torch.tanh(h @ weight + x), h.clone()), torch.zeros_like(x[0]), x
            )[0]
        if self.how == "map":
            return mapped(lambda row: row @ weight, x)
        if self.how == "while":
            start = torch.zeros((), dtype=torch.long, device=x.device), x[0]
            return while_loop(
                lambda i, h: i < self.times, lambda i, h: (i + 1, torch.tanh(h @ weight)), start
            )[1]
        if self.how == "alike":
            return torch.cond(
                x.sum() > 0, lambda x: x @ weight, lambda x: torch.tanh(x) @ weight, (x,)
            )
        return torch.cond(x.sum() > -1e9, lambda x: x @ weight, lambda x: x * 1.0, (x,))


@pytest.mark.parametrize(
    ("how", "bodies"),
    [("scan", STEPS), ("map", STEPS), ("while", 4), ("cond", STEPS), ("alike", STEPS)],
)
def test_bodies_are_counted_in_both_passes(how, bodies):
    model, x = Looped(how), torch.randn(STEPS, ROWS, WIDTH)
    with OperatorCounter(LayerTracker(model), memory=False) as counter:
        model(x).square().mean().backward()
    assert not counter.operations.uncounted
    assert counter.operations.sum("forward").flops == (STEPS + bodies) * BODY
    # Of the linear layer the gradient of its weights; of each body both gradients.
    assert counter.operations.sum("backward").flops == (STEPS + 2 * bodies) * BODY


def written_out(model, x):
    """What a model computes, as a loop of Python: torch 2.11 has other gradients of a scan."""
    x, weight = model.linear(x), model.weight
    if model.how == "map":
        return torch.stack([row @ weight for row in x])
    if model.how == "alike":
        return x @ weight if x.sum() > 0 else torch.tanh(x) @ weight
    state = torch.zeros_like(x[0])
    for row in x:
        state = torch.tanh(state @ weight + row)
    return state


@pytest.mark.parametrize("how", ["scan", "map", "alike"])
def test_gradients_under_the_counter_are_right(how):
    model, x = Looped(how), torch.randn(STEPS, ROWS, WIDTH)
    with OperatorCounter(LayerTracker(model), memory=False):
        model(x).square().mean().backward()
    counted = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    written_out(model, x).square().mean().backward()
    torch.testing.assert_close(counted, [parameter.grad for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("how", "bodies"), [("scan", STEPS), ("map", STEPS), ("while", 4), ("alike", STEPS)]
)
def test_without_data_the_same_is_counted(how, bodies):
    with torch.device("meta"), KnownValues():
        model, x = Looped(how), torch.empty(STEPS, ROWS, WIDTH)
        counted = count(model, lambda: model(x).square().mean())
    assert counted.operations.model_flops == (STEPS + bodies + STEPS + 2 * bodies) * BODY


def test_what_only_data_tell_is_an_error_that_says_so():
    with torch.device("meta"), KnownValues():
        model, x = Looped("cond"), torch.empty(STEPS, ROWS, WIDTH)
        with pytest.raises(CountError) as error:
            count(model, lambda: model(x).square().mean())
        assert numbers(error.value, "branches_differ") == {"taken": 1920, "other": 0}
        loops = nn.Module()
        with pytest.raises(CountError) as error:
            count(
                loops,
                lambda: while_loop(
                    lambda h: h.sum() < 9, lambda h: (h @ h,), (torch.empty(2000, 2000),)
                )[0],
            )
        assert "loop_needs_data" in keys(error.value)


def test_an_associative_scan_and_an_exported_branch():
    x = torch.randn(8, ROWS, ROWS)
    with OperatorCounter(LayerTracker(nn.Identity()), memory=False) as counter:
        associative_scan(torch.matmul, x, dim=0, combine_mode="generic")
    # Of 8 elements 4 pairs, of these 2, then 1; on the way back 1 and 3 for the places between.
    assert counter.operations.model_flops == (4 + 2 + 1 + 1 + 3) * 2 * ROWS**3
    model = Looped("alike").eval()
    exported = torch.export.export(model, (torch.randn(STEPS, ROWS, WIDTH),)).module()
    with OperatorCounter(LayerTracker(exported), memory=False) as counter, torch.no_grad():
        exported(torch.randn(STEPS, ROWS, WIDTH))
    assert counter.operations.model_flops == 2 * STEPS * BODY
    assert not counter.operations.uncounted


def test_an_operator_around_another_costs_what_that_costs():
    a, b = torch.ones(4, 8, dtype=torch.int8), torch.ones(8, 16, dtype=torch.int8)
    with OperatorCounter(LayerTracker(nn.Identity()), memory=False) as counter:
        out_dtype(torch.ops.aten.mm.default, torch.int32, a, b)
    assert counter.operations.model_flops == 2 * 4 * 8 * 16


@pytest.mark.slow
def test_a_first_step_that_loads_the_compiler_leaves_the_next_ones_compilable():
    program = """if True:
        import torch
        from torch._higher_order_ops import scan
        from mfulab.flops.counter import OperatorCounter
        from mfulab.flops.layers import LayerTracker
        w = torch.randn(4, 4, requires_grad=True)
        run = lambda: scan(lambda h, x: (torch.tanh(h @ w + x), h.clone()), torch.zeros(2, 4), torch.ones(3, 2, 4))[0]
        with OperatorCounter(LayerTracker(torch.nn.Identity()), memory=False) as counter:
            run()
        run().sum().backward()
        print(counter.operations.model_flops)
        """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{3 * 2 * 2 * 4 * 4}\n", done.stderr
