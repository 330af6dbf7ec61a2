"""`mfulab.measure` around loops on a GPU: autograd's threads are counted, graphs replayed."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mfulab

pytestmark = pytest.mark.gpu
ROWS, WIDTH = 256, 1024
ONE = 2 * ROWS * WIDTH * WIDTH


@pytest.fixture
def model():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).cuda()


def inputs(**options) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, device="cuda", **options)


def checkpointed(model, use_reentrant):
    """The row of twenty steps through a checkpoint."""

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = checkpoint(model, inputs(requires_grad=True), use_reentrant=use_reentrant).sum()
        loss.backward()

    step()
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for _ in range(20):
            step()
            window.step()
    return window.row


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_under_autocast(model, use_reentrant):
    row = checkpointed(model, use_reentrant)
    assert row["flops"] == 12 * ONE
    assert row["executed_flops"] == (12 + (4 if use_reentrant else 3)) * ONE
    assert row["effective_precision"] == "bf16"
    assert 0 < row["time_s"] < 1


SLOW = pytest.mark.xfail(reason="an H100 counted 17 of 20 steps, for a cause not found")


@pytest.mark.parametrize("use_reentrant", [False, pytest.param(True, marks=SLOW)])
def test_a_checkpoint_is_counted_once(model, use_reentrant):
    row = checkpointed(model, use_reentrant)
    assert (row["steps"], row["counted_steps"]) == (19, 1)


def test_a_replayed_graph_is_counted_by_its_batch(model):
    model.eval()
    static, graph = inputs(), torch.cuda.CUDAGraph()
    with torch.no_grad():
        model(static)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            model(static)
    with mfulab.measure(model, batch=static, quiet=True, ceiling_s=0) as window:
        for _ in range(20):
            graph.replay()
            window.step()
    assert (window.row["steps"], window.row["flops"]) == (20, 4 * ONE)


def test_compiled_in_the_mode_of_graphs(model):
    compiled = torch.compile(model, mode="reduce-overhead")

    def step():
        model.zero_grad()  # gradients are a graph's outputs, which its next replay overwrites
        compiled(inputs()).sum().backward()

    for _ in range(5):
        step()
    with mfulab.measure(compiled, quiet=True, ceiling_s=0) as window:
        for _ in range(20):
            step()
            window.step()
    assert (window.row["counted_steps"], window.row["flops"]) == (1, 11 * ONE)
