"""The autograd graph of a step: what each node's operator returned, saved, and costs in both
passes."""

from dataclasses import dataclass
from typing import Any

import torch

from mfulab.flops.tensors import SavedTensors

MOST = 12  # most nodes that fit a picture


@dataclass(frozen=True)
class Node:
    """A node of the autograd graph. Views of parameters are left out, as they belong to the node
    that reads them."""

    name: str  # torch's name, such as AddmmBackward0
    number: int  # sequence number, in the order in which nodes were made
    shape: list[int]  # of the operator's output, and of the gradient that enters the node
    # tensors saved for the backward pass: name if a parameter, and shape
    saved: list[tuple[str, list[int]]]
    parameters: list[str]  # parameters that get a gradient from it


def chain(loss: torch.Tensor, model: torch.nn.Module, saved: SavedTensors) -> list[Node]:
    """Nodes from the first operator to the loss, before backward has run. Empty if they branch or
    are more than MOST. Saved tensors are taken from `saved`, since asking a node for them would
    make a checkpoint recompute."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    nodes: list[Node] = []
    node: Any = loss.grad_fn
    while node is not None:
        before = []
        for function, _ in node.next_functions:
            if function is not None:
                before.append(function)
        leaves = [_leaf(function, saved) for function in before]
        others = []
        for function, leaf in zip(before, leaves, strict=True):
            if leaf is None:
                others.append(function)
        if len(others) > 1 or len(nodes) == MOST or not getattr(node, "_input_metadata", None):
            return []
        number = node._sequence_nr()
        parameters = []
        for leaf in leaves:
            if leaf is not None:
                parameters.append(names.get(id(leaf), ""))
        kept = saved.of_nodes.get(number, [])
        nodes.append(Node(node.name(), number, [*node._input_metadata[0].shape], kept, parameters))
        node = None
        if others:
            node = others[0]
    return nodes[::-1]


def _leaf(node: Any, saved: SavedTensors) -> torch.Tensor | None:
    """Parameter whose gradient a node accumulates, directly or as a view. None for any other
    node."""
    while (
        not hasattr(node, "variable")
        and len(node.next_functions) == 1
        and node._sequence_nr() not in saved.of_nodes
    ):
        if (node := node.next_functions[0][0]) is None:
            return None
    return getattr(node, "variable", None)
