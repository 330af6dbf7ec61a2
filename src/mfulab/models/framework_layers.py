"""Translates a torch model to a chain of layers that another framework runs, with channels last."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said


@dataclass(frozen=True)
class Layer:
    """One layer of a chain, with channels last."""

    kind: Literal["convolution", "linear", "relu", "flatten"]
    # [height, width, in, out] of a convolution, [in, out] of a linear layer
    weight: np.ndarray | None = None
    bias: np.ndarray | None = None  # [out], or None
    stride: tuple[int, int] = (1, 1)  # for a convolution, (down, right)
    padding: tuple[int, int] = (0, 0)  # for a convolution, on both sides, (rows, columns)


def layers_of(model: nn.Module, inputs: torch.Tensor) -> list[Layer]:
    """Translates a chain of convolutions, linear layers, ReLU and flattening to layers with
    channels last. Raises UnsupportedError for any other layer."""
    traced = torch.fx.symbolic_trace(nn.Sequential(model))
    modules = dict(traced.named_modules())
    layers: list[Layer] = []
    # [channels, height, width] of images that were flattened; reset by the next linear layer
    images: tuple[int, ...] | None = None
    value = inputs[:1]
    with torch.no_grad():
        for node in traced.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            part = modules[node.target] if node.op == "call_module" else None
            layer = _layer(part, node, images)
            if layer is None:
                name = (
                    type(part).__name__
                    if part is not None
                    else getattr(node.target, "__name__", node.target)
                )
                raise UnsupportedError(
                    Said(
                        "layer_not_translated", {"model": str(type(model).__name__), "layer": name}
                    )
                )
            if layer.kind == "flatten" and value.ndim == 4:
                images = tuple(value.shape[1:])
            elif layer.kind == "linear":
                images = None
            if part is not None:
                value = part(value)
            elif layer.kind == "flatten":
                value = value.flatten(1)
            else:
                value = value.relu()
            layers.append(layer)
    return layers


def _layer(part: nn.Module | None, node: Any, images: Sequence[int] | None) -> Layer | None:
    """Translates one node of the graph, or returns None if it cannot. `images` is the shape of
    images that were flattened before it."""
    if isinstance(part, nn.Conv2d | nn.Linear):
        weight = part.weight.detach().numpy()
        bias = None if part.bias is None else part.bias.detach().numpy()
    if isinstance(part, nn.Conv2d):
        if part.groups != 1 or set(part.dilation) != {1} or isinstance(part.padding, str):
            return None
        return Layer("convolution", weight.transpose(2, 3, 1, 0), bias, part.stride, part.padding)  # type: ignore[arg-type]
    if isinstance(part, nn.Linear):
        # flattened with channels last here, but with channels first in torch
        if images is not None:
            weight = weight.reshape(-1, *images).transpose(0, 2, 3, 1).reshape(len(weight), -1)
        return Layer("linear", weight.T, bias)
    if isinstance(part, nn.ReLU) or node.target in (torch.relu, nn.functional.relu, "relu"):
        return Layer("relu")
    if isinstance(part, nn.Flatten) or (
        node.target in (torch.flatten, "flatten") and node.args[1:] == (1,)
    ):
        return Layer("flatten")
    return None


def parameters_of(layers: Sequence[Layer], convert: Callable[[np.ndarray], Any]) -> list[list[Any]]:
    """Returns the weight and bias of each layer, if it has them, as arrays made by `convert`."""
    return [
        [convert(tensor) for tensor in (layer.weight, layer.bias) if tensor is not None]
        for layer in layers
    ]


def forward(
    layers: Sequence[Layer],
    parameters: Sequence[Sequence[Any]],
    values: Any,
    operations: Mapping[str, Callable[..., Any]],
) -> Any:
    """Runs the layers one after another. `operations` compute each kind from values, layer and
    weight, and add the `bias`."""
    for layer, held in zip(layers, parameters, strict=True):
        values = operations[layer.kind](values, layer, *held[:1])
        if len(held) > 1:
            values = operations["bias"](values, held[1])
    return values


def channels_last(images: torch.Tensor) -> np.ndarray:
    """Converts [batch, channels, height, width] to an array [batch, height, width, channels]. Other
    shapes do not change."""
    return (images.permute(0, 2, 3, 1) if images.ndim == 4 else images).contiguous().numpy()


def channels_first(output: torch.Tensor) -> torch.Tensor:
    """Returns a view of a framework's output with channels first, as in torch. Other shapes do not
    change."""
    return output.permute(0, 3, 1, 2) if output.ndim == 4 else output
