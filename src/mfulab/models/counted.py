"""Counts a model by its config: on the meta device, else with fake tensors, else with real ones on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import psutil
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.flops.count import Count, CountError, count
from mfulab.flops.fused import fused_operators
from mfulab.flops.values import KnownValues
from mfulab.models.build import (
    ModelError,
    build,
    enable_checkpointing,
    first_tensor,
    loss,
    make_batch,
    require_positions,
)
from mfulab.models.decoding import generating

Means = Literal["meta", "fake", "cpu"]
Mode = Literal["training", "inference", "prefill", "decoding"]


@dataclass(frozen=True)
class ModelCount:
    """A counted model."""

    count: Count
    model: torch.nn.Module  # its parameters on the meta device, fake, or real
    means: Means  # what it was counted on
    message: str  # why not on the meta device; empty if it was
    ends: int  # floats of the input and of the output's first tensor


def count_model(
    config: ModelConfig,
    batch_size: int,
    sequence_length: int | None = None,
    *,
    checkpointing: bool = False,
    mode: Mode = "training",
) -> ModelCount:
    """Counts one step of `batch_size` samples, whatever the number format; with `checkpointing` each block is
    recomputed. Inference is a forward pass in evaluation mode; prefill that of a prompt with its last token's logits
    alone; decoding that of the last token, keys and values of those before in a cache. Raises ModelError if it cannot
    be built, UnsupportedError without cache or blocks, CountError if all three ways fail."""
    failures: list[str] = []
    reasons = ""
    words: dict[Means, str] = {"meta": "the meta device", "fake": "fake tensors", "cpu": "the CPU"}
    for means in words:
        try:
            return replace(_count(config, batch_size, sequence_length, checkpointing, mode, means), message=reasons)
        except (ModelError, UnsupportedError):
            raise
        except Exception as error:
            failures += [(str(error).strip().splitlines() or [type(error).__name__])[0]]
        reasons = "; ".join(f"not on {where}: {why}" for where, why in zip(words.values(), failures, strict=False))
    if len(set(failures)) == 1:
        reasons = failures[0].rstrip(".")
    shape = [batch_size, *(config.input_shape or [sequence_length or config.sequence_length or 1])]
    raise CountError(
        f"model={config.name} cannot be counted with an input of shape {shape}. {reasons}. "
        "Set model.input_shape, or model.sequence_length and model.vocabulary_size, to what its forward takes as its "
        "only argument; or wrap it in a module that makes its other inputs; or count a step that really runs, inside "
        "mfulab.measure or mfulab.flops.OperatorCounter."
    )


def _count(
    config: ModelConfig, batch_size: int, sequence_length: int | None, checkpointing: bool, mode: Mode, means: Means
) -> ModelCount:
    if means == "cpu":
        with _tensors("meta"):
            needed = 2 * sum(parameter.numel() * parameter.element_size() for parameter in build(config).parameters())
        if needed > (available := psutil.virtual_memory().available):
            raise MemoryError(f"weights and gradients need {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are free")
    fused, training = means != "cpu", mode == "training"
    with _tensors(means) as device, torch.set_grad_enabled(training):
        model = build(config).train(training)
        if checkpointing:
            enable_checkpointing(model)
        batch = make_batch(config, batch_size, sequence_length, device=device)
        require_positions(model, batch)
        with fused_operators() if fused else nullcontext():
            generate = generating(mode, model, batch.inputs, model) if mode in ("prefill", "decoding") else None
        ends = [batch.inputs.numel() if batch.inputs.is_floating_point() else 0]
        kept: list[object] = []  # through the backward pass, as by the variable of a loop

        def step() -> torch.Tensor:
            output = generate() if generate else model(batch.inputs)
            kept[:] = [output]
            ends[1:] = [first_tensor(output).numel()]
            return loss(output, batch.targets, config.task) if training else first_tensor(output)

        try:
            counted = count(model, step, backward=training, fused=fused)
        except CountError as error:
            if training or "does not require grad" not in str(error):
                raise
            with torch.enable_grad():  # forces are gradients inside the model
                counted = count(model, step, backward=False, fused=fused)
        return ModelCount(counted, model, means, "", sum(ends))


@contextmanager
def _tensors(means: Means) -> Iterator[str]:
    device = "meta" if means == "meta" else "cpu"
    made = FakeTensorMode(allow_non_fake_inputs=True) if means == "fake" else torch.device(device)
    with made, KnownValues() if means == "meta" else nullcontext():
        yield device
