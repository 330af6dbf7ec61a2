"""FLOPs of a call that cannot be seen, from the shapes of its arguments: on the meta device, else
with fake tensors."""

from collections.abc import Callable, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from mfulab.core.errors import warn
from mfulab.flops.count import Count, CountError, count


def flops_of(model: torch.nn.Module, batch: object, backward: bool | None = None) -> int:
    """FLOPs that one call of `model` needs, and those of its backward pass: for
    `measure(flops_per_step=)`. They are counted from shapes: before a model is sharded, or where a
    wrapper cannot be counted. A warning names modules that this batch (a tensor, a tuple or a dict
    of one rank's arguments) does not run. Without `backward` a backward pass follows in training
    mode. Raises CountError, which names the layer, if the forward needs data."""
    counted = count_call(model, batch, model.training if backward is None else backward)
    if counted.unused:
        warn(f"did not run and cost nothing: {', '.join(counted.unused)}")
    return counted.operations.model_flops


def count_call(model: torch.nn.Module, batch: object, backward: bool) -> Count:
    """One call of `model` with a batch as of `flops_of`, and its backward pass; neither it nor its
    state is touched."""
    arguments, keywords = ((), batch) if isinstance(batch, dict) else (batch, {})
    if not isinstance(arguments, tuple):
        arguments = tuple(arguments) if isinstance(arguments, list) else (arguments,)
    model = unwrapped(model)
    try:
        return _counted(
            model,
            arguments,
            keywords,
            backward,
            lambda tensor: torch.empty_like(tensor, device="meta"),
        )
    except CountError:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return _counted(model, arguments, keywords, backward, mode.from_tensor)


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside torch.compile's and data parallelism's wrappers."""
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

    state = {
        name: emptied(tensor)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    given = tree_map_only(torch.Tensor, emptied, (arguments, keywords))

    def step() -> torch.Tensor:
        output = torch.func.functional_call(model, state, *given)
        leaves = tree_leaves(dict(output) if hasattr(output, "keys") else output)
        tensors = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
        traced = []
        for leaf in tensors:
            if leaf.requires_grad:
                traced.append(leaf.sum())
        if traced:
            return sum(traced[1:], traced[0])
        return tensors[0].sum()

    with torch.set_grad_enabled(backward):
        return count(model, step, backward=backward)
