"""Autograd's graph of a step: its nodes, what they save, and FLOPs that add up."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mfulab.flops.count import count


def counted(model, inputs):
    return count(model, lambda: model(inputs).square().mean())


def test_nodes_hold_shapes_saved_tensors_parameters_and_all_flops():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        result = counted(net, torch.ones(5, 4))
    nodes = {node.name: (node, *flops) for node, *flops in result.graph}
    assert [*nodes] == ["AddmmBackward0", "ReluBackward0", "PowBackward0", "MeanBackward0"]
    first, last = (each for each in result.graph if each[0].name == "AddmmBackward0")
    # no gradient of its input needs the weights
    assert (first[0].saved, first[0].shape) == ([("", [5, 4])], [5, 3])
    assert last[0].saved == [("", [5, 3]), ("2.weight", [3, 2])]
    assert sorted(last[0].parameters) == ["2.bias", "2.weight"]
    assert (first[1:], last[1:]) == ((120, 120), (60, 120))
    assert sum(flops for _, flops, _ in result.graph) == result.operations.sum("forward").flops
    assert sum(flops for *_, flops in result.graph) == result.operations.sum("backward").flops


class Branched(nn.Linear):
    def forward(self, values):
        hidden = super().forward(values)
        return hidden.sin() + hidden.cos()


@pytest.mark.parametrize(
    "net", [Branched(3, 3), nn.Sequential(*[nn.Linear(3, 3) for _ in range(13)])]
)
def test_what_branches_or_is_long_has_no_chain(net):
    assert counted(net.to("meta"), torch.ones(2, 3, device="meta")).graph == ()


def test_a_graph_that_lacks_products_is_not_kept():
    class Masked(nn.Linear):
        def forward(self, values):
            with torch.no_grad():
                values = values @ values.T @ values
            return super().forward(values)

    result = counted(Masked(3, 2).to("meta"), torch.ones(2, 3, device="meta"))
    assert result.operations.sum("forward").flops == 72
    assert result.graph == ()


class Checkpointed(nn.Module):
    """A recomputed block, and a layer behind it."""

    def __init__(self, recomputes):
        super().__init__()
        self.block, self.last = (
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
            nn.Linear(4, 2),
        )
        self.recomputes = recomputes

    def forward(self, values):
        hidden = (
            checkpoint(self.block, values, use_reentrant=False)
            if self.recomputes
            else self.block(values)
        )
        return self.last(hidden)


def test_reading_the_graph_of_a_checkpointed_model_recomputes_nothing():
    plain, again = (
        counted(Checkpointed(each).to("meta"), torch.ones(3, 4, device="meta"))
        for each in (False, True)
    )
    flops = [
        [each.operations.sum(way).flops for way in ("forward", "backward")]
        for each in (plain, again)
    ]
    assert flops == [[240, 384], [240, 384]]
    assert again.operations.sum("recomputed").executed_flops == 192 // 2
    assert len(again.graph) == len(plain.graph) == 6
    assert [bool(node.saved) for node, *_ in again.graph][:3] == [False] * 3
