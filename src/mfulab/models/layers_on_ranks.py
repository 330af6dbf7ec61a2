"""A network whose layers are split over several ranks: each matrix in parts, or as stages of a
pipeline."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said

NO_SEQUENTIAL = Said("split_no_sequential")
Step = Callable[[], object]


@dataclass(frozen=True)
class Part:
    """Layers of a model that one rank holds, and the step in which it computes them."""

    layers: nn.Module
    step: Step
    own_products: Step  # the same matmuls without communication


def linear_pairs(model: nn.Module) -> list[tuple[str, str]]:
    """Names of the linear layers of a Sequential, in pairs: the first may be split by its outputs,
    the second by its inputs. Raises UnsupportedError if the model is no Sequential, or its linear
    layers do not form pairs."""
    if not isinstance(model, nn.Sequential):
        raise UnsupportedError(NO_SEQUENTIAL)
    names = [name for name, layer in model.named_children() if isinstance(layer, nn.Linear)]
    if not names or len(names) % 2:
        raise UnsupportedError(Said("split_needs_pairs", layers=len(names)))
    return list(zip(names[::2], names[1::2], strict=True))


def stage(model: nn.Module, rank: int, ranks: int) -> nn.Sequential:
    """Layers of one of `ranks` stages, all with the same number of children. Raises
    UnsupportedError if the model cannot be split evenly."""
    if not isinstance(model, nn.Sequential):
        raise UnsupportedError(NO_SEQUENTIAL)
    if len(model) % ranks:
        raise UnsupportedError(Said("split_no_multiple", layers=len(model), stages=ranks))
    count = len(model) // ranks
    children = list(model.named_children())
    return nn.Sequential(OrderedDict(children[rank * count : (rank + 1) * count]))


def input_width(layers: nn.Sequential) -> int:
    """Number of input features of the first layer. Raises UnsupportedError if it is not linear."""
    first = layers[0]
    if not isinstance(first, nn.Linear):
        raise UnsupportedError(Said("split_begins_linear"))
    return first.in_features


def whole(model: nn.Module, batch: torch.Tensor) -> Part:
    """Puts the whole model on this rank."""
    step = _step(model, batch)
    return Part(model, step, step)


def tensor_parallel(model: nn.Module, batch: torch.Tensor) -> Part:
    """Gives this rank columns of each pair's first matrix and rows of its second (Shoeybi et al.
    2019, arXiv:1909.08053). Results are summed over ranks once per pair, forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        RowwiseParallel,
        parallelize_module,
    )

    plan: dict[str, ParallelStyle] = {}
    for first, second in linear_pairs(model):
        plan[first] = ColwiseParallel()
        plan[second] = RowwiseParallel()
    mesh = init_device_mesh(batch.device.type, (dist.get_world_size(),))
    narrow = _narrowed(model, dist.get_world_size())
    split = parallelize_module(model, mesh, plan)
    return Part(split, _step(split, batch), _step(narrow, batch))


def _narrowed(model: nn.Module, ranks: int) -> nn.Module:
    """Copies a model with only this rank's share of the hidden units in each pair, so that its
    matmuls equal those of the rank's part."""
    narrow = copy.deepcopy(model)
    for first, second in linear_pairs(model):
        into: nn.Linear = getattr(model, first)
        out: nn.Linear = getattr(model, second)
        hidden = into.out_features // ranks
        device, dtype = into.weight.device, into.weight.dtype
        narrow_in = nn.Linear(into.in_features, hidden, device=device, dtype=dtype)
        narrow_out = nn.Linear(hidden, out.out_features, device=device, dtype=dtype)
        setattr(narrow, first, narrow_in)
        setattr(narrow, second, narrow_out)
    return narrow


def pipeline(model: nn.Module, batch: torch.Tensor, micro_batches: int) -> Part:
    """Gives this rank its stage, in GPipe's order: forward of all micro-batches, then backward of
    all (Huang et al. 2019, arXiv:1811.06965)."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    ranks = dist.get_world_size()
    layers = stage(model, rank, ranks)
    schedule = ScheduleGPipe(
        PipelineStage(layers, rank, ranks, batch.device),
        micro_batches,
        loss_fn=_summed,
        scale_grads=False,
    )

    def step() -> None:
        layers.zero_grad()
        if rank == 0:
            schedule.step(batch)
        elif rank == ranks - 1:
            schedule.step(target=batch)
        else:
            schedule.step()

    local = copy.deepcopy(layers)
    inputs = torch.randn(len(batch), input_width(local), device=batch.device)

    def own_products() -> None:
        local.zero_grad()
        for micro_batch in inputs.chunk(micro_batches):
            local(micro_batch.requires_grad_(rank > 0)).sum().backward()

    return Part(layers, step, own_products)


def _summed(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    return output.sum()


def _step(model: nn.Module, batch: torch.Tensor) -> Step:
    """Returns forward and backward of a batch, with gradients reset first."""

    def step() -> None:
        model.zero_grad()
        model(batch).sum().backward()

    return step


def sent_bytes(model: nn.Module, split: str, samples: int, ranks: int) -> float:
    """Mean bytes of fp32 that a rank sends in a step. A pipeline sends activations forward and
    gradients back at each cut. Tensor parallelism sums n bytes per pair in each direction,
    2·n·(d−1)/d with ring collectives; the first pair's inputs need no sum in backward."""
    if split == "pipeline":
        widths = [input_width(stage(model, rank, ranks)) for rank in range(1, ranks)]
        return 2 * 4 * samples * sum(widths) / ranks
    if split == "tensor":
        pairs = linear_pairs(model)
        forward = sum(getattr(model, second).out_features for _, second in pairs)
        backward = sum(getattr(model, first).in_features for first, _ in pairs[1:])
        return 2 * 4 * samples * (forward + backward) * (ranks - 1) / ranks
    return 0.0


def rank_gradient(part: nn.Module) -> dict[str, torch.Tensor]:
    """Gradients of a rank's parameters by name. Parts of split matrices are put together."""
    gradients = {}
    for name, parameter in part.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor()
        gradients[name] = gradient.detach()
    return gradients
