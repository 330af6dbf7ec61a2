"""Counts the FLOPs and memory of one training step of a model, without a device and without
allocating memory."""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mfulab.core.said import Numbers, Said, SaidError, said_by
from mfulab.flops.certainty import Certainty, LayerCount, certainty
from mfulab.flops.counter import Operations, OperatorCounter
from mfulab.flops.fused import fused_operators
from mfulab.flops.graph import Node, chain
from mfulab.flops.layers import LayerTracker, outermost
from mfulab.flops.tensors import LstmsOnCpu, MemorySize, SavedTensors
from mfulab.flops.useful import RealTokens, real_tokens, useful_flops


class CountError(SaidError, RuntimeError):
    """Raised if a model's step could not be counted. The message names the layer and its error."""


@dataclass(frozen=True)
class Count:
    """Result of counting one forward and backward pass of a model."""

    operations: Operations  # FLOPs and elements by layer, operator and pass
    # activations: saved for the backward pass, without parameters and buffers
    saved: MemorySize
    # largest memory alive at once, without parameters and inputs: activations, gradients and
    # temporary results
    peak: MemorySize
    by_layers: dict[str, int]  # forward FLOPs of layers that have a formula: a second count
    # real tokens, from the first layer call that shows them; None if none does
    real: RealTokens | None = None
    # whether torch.func saved tensors, which hooks cannot see and `saved` lacks
    saved_in_part: bool = False
    unused: tuple[str, ...] = ()  # modules with weights that did not run and cost nothing
    # nodes with forward and backward FLOPs, if they are a short chain
    graph: tuple[tuple[Node, int, int], ...] = ()
    # memory that LSTMs save on a CPU beyond `saved`
    more_on_cpu: MemorySize = field(default_factory=MemorySize)

    @property
    def useful_percent(self) -> float | None:
        """Percentage of forward and backward FLOPs that serve real tokens. None if no call shows
        which tokens are real."""
        total = self.operations.model_flops
        useful = useful_flops(self.operations, self.real)
        if useful is not None and total:
            return 100 * useful / total
        return None

    @property
    def certainty(self) -> Certainty:
        """Certainty of the count."""
        return certainty(self.operations, self.by_layers, self.unused)


def count(
    model: torch.nn.Module, step: Callable[[], Any], backward: bool = True, fused: bool = True
) -> Count:
    """Counts a step: the forward pass of a model to a scalar loss, and the gradients of everything
    that requires them. `step` runs the forward pass on the model's device, and returns the loss, or
    gradients computed by torch.func. `fused` makes attention one operator, as on a device; use it
    only on devices without data (meta, fake tensors). Raises CountError, which names the layer, if
    the step failed."""
    layers = LayerTracker(model)
    saved = SavedTensors(model)
    by_layers = LayerCount(model)
    real = _RealTokens(model)
    counter = OperatorCounter(layers)
    lstms = LstmsOnCpu(model, saved)
    try:
        with by_layers, real, counter, fused_operators() if fused else nullcontext():
            with saved, lstms:
                loss = step()
            nodes = []
            if backward and isinstance(loss, torch.Tensor) and loss.requires_grad:
                nodes = chain(loss, model, saved)
                loss.backward()
    except Exception as error:
        numbers: Numbers = {"model": type(model).__name__, "error": said_by(error)}
        reason = Said("failed_in_forward", numbers)
        if layers.failed:
            reason = Said("failed_in_layer", **numbers, layer=layers.failed)
        raise CountError(reason) from error
    return Count(
        operations=counter.operations,
        saved=saved.total,
        peak=counter.live.peak,
        by_layers=by_layers.flops,
        real=real.tokens,
        saved_in_part=saved.interrupted,
        unused=tuple(outermost(layers.unused or ())),
        graph=_graph(nodes, counter),
        more_on_cpu=lstms.more,
    )


def _graph(nodes: list[Node], counter: OperatorCounter) -> tuple[tuple[Node, int, int], ...]:
    """Nodes with their forward and backward FLOPs. Empty if these are not all FLOPs of the step."""
    graph = []
    for node in nodes:
        forward = counter.by_node[node.number, "forward"]
        backward = counter.by_node[node.number, "backward"]
        graph.append((node, forward, backward))
    all_forward = sum(forward for _, forward, _ in graph)
    all_backward = sum(backward for _, _, backward in graph)
    operations = counter.operations
    if all_forward != operations.sum("forward").flops:
        return ()
    if all_backward != operations.sum("backward").flops:
        return ()
    return tuple(graph)


class _RealTokens(ExitStack):
    """Records the real tokens of the first layer whose call shows them. The model's own call may
    not, as a wrapper may pad or make the mask."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.tokens: RealTokens | None = None
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self.callback(module.register_forward_pre_hook(self._note, with_kwargs=True).remove)

    def _note(
        self, module: torch.nn.Module, arguments: tuple[object, ...], keywords: dict[str, Any]
    ) -> None:
        if self.tokens is None and torch._C._current_autograd_node() is None:
            with _disable_current_modes():
                self.tokens = real_tokens(arguments, keywords)
