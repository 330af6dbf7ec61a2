"""The autograd graph of a step: what each node's operator returned, saved, and costs in both
passes."""

from dataclasses import dataclass
from typing import Any

import torch

from mfulab.flops.tensors import SavedTensors

MOST_NODES = 12  # most nodes that fit a picture


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
    are more than MOST_NODES. Saved tensors are taken from `saved`, since asking a node for them
    would make a checkpoint recompute."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    nodes: list[Node] = []
    node: Any = loss.grad_fn
    while node is not None:
        parameters = []
        earlier = []  # nodes of operators, not of parameters
        for function, _ in node.next_functions:
            if function is None:
                continue
            leaf = _leaf(function, saved)
            if leaf is None:
                earlier.append(function)
            else:
                parameters.append(names.get(id(leaf), ""))
        outputs = getattr(node, "_input_metadata", None)
        if len(earlier) > 1 or len(nodes) == MOST_NODES or not outputs:
            return []
        number = node._sequence_nr()
        saved_here = saved.of_nodes.get(number, [])
        nodes.append(Node(node.name(), number, [*outputs[0].shape], saved_here, parameters))
        node = earlier[0] if earlier else None
    return nodes[::-1]


def _leaf(node: Any, saved: SavedTensors) -> torch.Tensor | None:
    """Parameter whose gradient a node accumulates, directly or as a view. None for any other
    node."""
    while (
        not hasattr(node, "variable")
        and len(node.next_functions) == 1
        and node._sequence_nr() not in saved.of_nodes
    ):
        node = node.next_functions[0][0]
        if node is None:
            return None
    return getattr(node, "variable", None)
