"""Prunes linear layers: single weights set to zero, whole hidden units removed, or two of every
four weights."""

import itertools
from collections.abc import Iterator

import torch
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.core.said import Said
from mfulab.device import gpu


def perceptron(width: int, hidden: int, depth: int) -> nn.Sequential:
    """Builds `depth` blocks of two linear layers with a ReLU between them: [batch, width] → [batch,
    width]."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)]
    return nn.Sequential(*layers)


def prune(model: nn.Module, config: ModelConfig) -> None:
    """Prunes weights of least magnitude in place (Han et al. 2015). `masked` zeroes a share of
    `config.pruned_share`, `two_of_four` two of every four; both keep shapes, and so FLOPs.
    `structured` removes that share of the hidden units between two linear layers (Li et al. 2017,
    arXiv:1608.08710, for filters). On the meta device only shapes change. Raises UnsupportedError
    if no layer can be pruned."""
    if config.pruning == "structured":
        _remove_units(model, config.pruned_share)
        return
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise UnsupportedError(Said("pruning_no_linear", pruning=str(config.pruning)))
    with torch.no_grad():
        for layer in layers:
            if layer.weight.is_meta:
                continue
            if config.pruning == "masked":
                _zero_share(layer.weight, config.pruned_share)
            else:
                _zero_two_of_four(layer.weight)


def _remove_units(model: nn.Module, share: float) -> None:
    """Removes the weakest hidden units between two linear layers from both."""
    pairs = list(_pairs(model))
    if not pairs:
        raise UnsupportedError(Said("no_linear_pair"))
    for parent, (first_index, first), (second_index, second) in pairs:
        hidden = first.out_features
        count = max(1, hidden - round(share * hidden))
        strengths = first.weight.norm(dim=1)
        strongest = strengths.topk(count).indices.sort().values
        bias = None
        if first.bias is not None:
            bias = first.bias[strongest]
        parent[first_index] = _layer(first.weight[strongest], bias)
        parent[second_index] = _layer(second.weight[:, strongest], second.bias)


def _zero_share(weight: torch.Tensor, share: float) -> None:
    count = round(share * weight.numel())
    smallest = weight.abs().flatten().topk(count, largest=False).indices
    weight.view(-1)[smallest] = 0


def _zero_two_of_four(weight: torch.Tensor) -> None:
    if weight.shape[1] % 4:
        raise UnsupportedError(Said("sparse_no_groups", inputs=weight.shape[1]))
    groups = weight.view(len(weight), -1, 4)
    smallest = groups.abs().topk(2, largest=False).indices
    groups.scatter_(-1, smallest, 0)


def compress(model: nn.Module) -> None:
    """Packs 16-bit weights with two of four zeros for sparse tensor cores, in place. Raises
    UnsupportedError below compute capability 8.0, and for other dtypes."""
    for layer in model.modules():
        if not isinstance(layer, nn.Linear):
            continue
        weight = layer.weight.detach()
        capability = None
        if weight.is_cuda:
            capability = gpu.capability_of(weight.device)
        if capability is None or capability < (8, 0):
            raise UnsupportedError(Said("sparse_needs_ampere"))
        if weight.dtype not in (torch.float16, torch.bfloat16):
            raise UnsupportedError(Said("sparse_formats", dtype=str(weight.dtype)))
        packed = torch.sparse.to_sparse_semi_structured(weight)
        layer.weight = nn.Parameter(packed, requires_grad=False)


def _pairs(
    model: nn.Module,
) -> Iterator[tuple[nn.Sequential, tuple[int, nn.Linear], tuple[int, nn.Linear]]]:
    """Yields each Sequential with two linear layers and their indices, if nothing with parameters
    is between them. No layer is in two pairs."""
    for parent in model.modules():
        if not isinstance(parent, nn.Sequential):
            continue
        with_parameters = []
        for index, module in enumerate(parent):
            if next(module.parameters(), None) is not None:
                with_parameters.append((index, module))
        last_paired = -1
        for (index, layer), (next_index, other) in itertools.pairwise(with_parameters):
            if not isinstance(layer, nn.Linear) or not isinstance(other, nn.Linear):
                continue
            if index > last_paired:
                last_paired = next_index
                yield parent, (index, layer), (next_index, other)


def _layer(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer
