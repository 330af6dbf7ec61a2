"""Counts what one training step of a model costs, without a device and without memory."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from mfulab.flops.certainty import Certainty, LayerCount, certainty
from mfulab.flops.counter import Operations, OperatorCounter
from mfulab.flops.fused import fused_operators
from mfulab.flops.layers import LayerTracker
from mfulab.flops.tensors import Held, SavedTensors


class CountError(RuntimeError):
    """A model whose step could not be counted; the message says in which layer and what to change."""


@dataclass(frozen=True)
class Count:
    """One forward and backward pass of a model.

    Attributes:
        operations: FLOPs and elements by layer, operator and pass.
        saved: kept by the forward pass for the backward pass, parameters and buffers left out: the activations.
        peak: largest memory alive at once beside parameters and inputs: activations, gradients, what is in passing.
        by_layers: forward FLOPs of the layers that have formulas of their own: a second count.
    """

    operations: Operations
    saved: Held
    peak: Held
    by_layers: dict[str, int]

    @property
    def certainty(self) -> Certainty:
        """Certainty of the count."""
        return certainty(self.operations, self.by_layers)


def count(model: torch.nn.Module, step: Callable[[], torch.Tensor], backward: bool = True, fused: bool = True) -> Count:
    """Counts a step in which the model computes a scalar loss, and the gradients of what requires them.

    Args:
        model: the model whose layers the count is told by, on the device that the step runs on.
        step: runs the forward pass and returns the loss, a scalar.
        backward: whether to run the backward pass too.
        fused: whether attention is one operator, as on a device; for devices without data (meta, fake tensors) only.

    Raises:
        CountError: the step failed; the message names the layer.
    """
    layers = LayerTracker(model)
    saved = SavedTensors(model)
    counter = OperatorCounter(layers)
    second = LayerCount(model)
    try:
        with second, counter, fused_operators() if fused else nullcontext():
            with saved:
                loss = step()
            if backward and loss.requires_grad:
                loss.backward()
    except Exception as error:
        where = f"layer {layers.failed}" if layers.failed else "its own forward"
        raise CountError(f"{type(model).__name__} failed in {where}: {error}") from error
    return Count(counter.operations, saved.total, counter.live.peak, second.flops)
