"""The graph that autograd made of a step: what each node's operator returned, saved and costs in both passes."""

from dataclasses import dataclass
from typing import Any

import torch

MOST = 12  # nodes beyond which a graph is no picture


@dataclass(frozen=True)
class Node:
    """A node of autograd's graph, without views of parameters, which belong to the node that reads them."""

    name: str  # torch's, such as AddmmBackward0
    number: int  # in the order in which nodes were made
    shape: list[int]  # of the operator's output, and of the gradient that the node is given
    saved: dict[str, list[int]]  # shapes of the tensors kept for the backward pass, by the operator's word for them
    parameters: list[str]  # that get a gradient from it


def chain(loss: torch.Tensor, model: torch.nn.Module) -> list[Node]:
    """Nodes from the first operator to the loss; none if they branch or are more than MOST. Call it before backward."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    nodes: list[Node] = []
    node: Any = loss.grad_fn
    while node is not None:
        before = [each for each, _ in node.next_functions if each is not None]
        leaves = [_leaf(each) for each in before]
        others = [each for each, leaf in zip(before, leaves, strict=True) if leaf is None]
        if len(others) > 1 or len(nodes) == MOST or "Backward" not in node.name():
            return []
        parameters = [names.get(id(leaf), "") for leaf in leaves if leaf is not None]
        shape = [*node._input_metadata[0].shape]
        nodes.append(Node(node.name(), node._sequence_nr(), shape, _saved(node), parameters))
        node = others[0] if others else None
    return nodes[::-1]


def _saved(node: Any) -> dict[str, list[int]]:
    held = {name.removeprefix("_saved_"): getattr(node, name) for name in dir(node) if name.startswith("_saved_")}
    return {name: [*tensor.shape] for name, tensor in held.items() if isinstance(tensor, torch.Tensor)}


def _leaf(node: Any) -> torch.Tensor | None:
    """The parameter of which a node accumulates the gradient, or that of which it is a view."""
    while not hasattr(node, "variable") and len(node.next_functions) == 1 and not _saved(node):
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)
