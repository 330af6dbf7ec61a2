"""Translates a torch model to a chain of layers that another framework runs, with channels last."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.parts import drop_none
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
            module = None
            if node.op == "call_module":
                module = modules[node.target]
            layer = _layer(module, node, images)
            if layer is None:
                raise UnsupportedError(_untranslated(model, module, node))
            if layer.kind == "flatten" and value.ndim == 4:
                images = tuple(value.shape[1:])
            elif layer.kind == "linear":
                images = None
            if module is not None:
                value = module(value)
            elif layer.kind == "flatten":
                value = value.flatten(1)
            else:
                value = value.relu()
            layers.append(layer)
    return layers


def _untranslated(model: nn.Module, module: nn.Module | None, node: Any) -> Said:
    """Reason why a model's node is not translated."""
    name = getattr(node.target, "__name__", node.target)
    if module is not None:
        name = type(module).__name__
    return Said("layer_not_translated", model=type(model).__name__, layer=name)


def _layer(module: nn.Module | None, node: Any, images: Sequence[int] | None) -> Layer | None:
    """Translates one node of the graph, or returns None if it cannot. `images` is the shape of
    images that were flattened before it."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        weight = module.weight.detach().numpy()
        bias = None
        if module.bias is not None:
            bias = module.bias.detach().numpy()
    if isinstance(module, nn.Conv2d):
        if module.groups != 1 or set(module.dilation) != {1} or isinstance(module.padding, str):
            return None
        weight = weight.transpose(2, 3, 1, 0)
        return Layer("convolution", weight, bias, module.stride, module.padding)  # type: ignore[arg-type]
    if isinstance(module, nn.Linear):
        # flattened with channels last here, but with channels first in torch
        if images is not None:
            outputs = len(weight)
            by_image = weight.reshape(-1, *images)
            weight = by_image.transpose(0, 2, 3, 1).reshape(outputs, -1)
        return Layer("linear", weight.T, bias)
    if isinstance(module, nn.ReLU) or node.target in (torch.relu, nn.functional.relu, "relu"):
        return Layer("relu")
    calls_flatten = node.target in (torch.flatten, "flatten") and node.args[1:] == (1,)
    if isinstance(module, nn.Flatten) or calls_flatten:
        return Layer("flatten")
    return None


def parameters_of(layers: Sequence[Layer], convert: Callable[[np.ndarray], Any]) -> list[list[Any]]:
    """Returns the weight and bias of each layer, if it has them, as arrays made by `convert`."""
    parameters = []
    for layer in layers:
        tensors = drop_none((layer.weight, layer.bias))
        parameters.append([convert(tensor) for tensor in tensors])
    return parameters


def forward(
    layers: Sequence[Layer],
    parameters: Sequence[Sequence[Any]],
    values: Any,
    operations: Mapping[str, Callable[..., Any]],
) -> Any:
    """Runs the layers one after another. `operations` compute each kind from values, layer and
    weight, and add the `bias`."""
    for layer, weight_and_bias in zip(layers, parameters, strict=True):
        weight = weight_and_bias[:1]  # empty for a layer without weights
        values = operations[layer.kind](values, layer, *weight)
        if len(weight_and_bias) > 1:
            values = operations["bias"](values, weight_and_bias[1])
    return values


def channels_last(images: torch.Tensor) -> np.ndarray:
    """Converts [batch, channels, height, width] to an array [batch, height, width, channels]. Other
    shapes do not change."""
    if images.ndim == 4:
        images = images.permute(0, 2, 3, 1)
    return images.contiguous().numpy()


def channels_first(output: torch.Tensor) -> torch.Tensor:
    """Returns a view of a framework's output with channels first, as in torch. Other shapes do not
    change."""
    if output.ndim == 4:
        return output.permute(0, 3, 1, 2)
    return output
