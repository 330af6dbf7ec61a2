"""Counts FLOPs of a call that cannot be seen, from the shapes of its arguments: on the meta device,
else with fake tensors."""

from collections.abc import Callable, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from mfulab.core.errors import warn
from mfulab.flops.count import Count, CountError, count


def flops_of(model: torch.nn.Module, batch: object, backward: bool | None = None) -> int:
    """FLOPs that one call of `model` and its backward pass need, for `measure(flops_per_step=)`.
    They are counted from shapes: before a model is sharded, or if a wrapper cannot be counted.
    `batch` is a tensor, a tuple or a dict of one rank's arguments; a warning names modules that it
    does not run. `backward` defaults to the model's training mode. Raises CountError, which names
    the layer, if the forward pass needs data."""
    if backward is None:
        backward = model.training
    counted = count_call(model, batch, backward)
    if counted.unused:
        warn(f"did not run and cost nothing: {', '.join(counted.unused)}")
    return counted.operations.model_flops


def count_call(model: torch.nn.Module, batch: object, backward: bool) -> Count:
    """Counts one call of `model` and its backward pass, with a batch as in `flops_of`. Changes
    neither the model nor its state."""
    arguments: tuple[object, ...] = (batch,)
    keywords: dict[str, object] = {}
    if isinstance(batch, dict):
        arguments = ()
        keywords = batch
    elif isinstance(batch, tuple):
        arguments = batch
    elif isinstance(batch, list):
        arguments = tuple(batch)
    model = unwrapped(model)
    try:
        return _counted(model, arguments, keywords, backward, _on_meta)
    except CountError:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return _counted(model, arguments, keywords, backward, mode.from_tensor)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the model inside the wrappers of torch.compile and data parallelism."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, torch.nn.Module):
            return model
        model = inner


def _counted(
    model: torch.nn.Module,
    arguments: tuple[object, ...],
    keywords: Mapping[str, object],
    backward: bool,
    without_data: Callable[[torch.Tensor], torch.Tensor],
) -> Count:
    def emptied(tensor: torch.Tensor) -> torch.Tensor:
        return without_data(tensor.detach()).requires_grad_(tensor.requires_grad)

    tensors = (*model.named_parameters(), *model.named_buffers())
    state = {name: emptied(tensor) for name, tensor in tensors}
    inputs = tree_map_only(torch.Tensor, emptied, (arguments, keywords))

    def step() -> torch.Tensor:
        output = torch.func.functional_call(model, state, *inputs)
        if hasattr(output, "keys"):
            output = dict(output)
        leaves = tree_leaves(output)
        results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        losses = [result.sum() for result in results if result.requires_grad]
        if losses:
            return sum(losses[1:], losses[0])
        return results[0].sum()

    with torch.set_grad_enabled(backward):
        return count(model, step, backward=backward)
