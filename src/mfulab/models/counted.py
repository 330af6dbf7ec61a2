"""Counts a model from its config: on the meta device, else with fake tensors, else with real ones
on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, get_args

import psutil
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.core.said import Said, SaidError, as_told, joined
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
_NOT_ON: dict[Means, str] = {"meta": "not_on_meta", "fake": "not_on_fake", "cpu": "not_on_cpu"}


@dataclass(frozen=True)
class ModelCount:
    """A count, and the model that was counted."""

    count: Count
    model: torch.nn.Module  # with parameters on the meta device, fake, or real
    means: Means  # kind of tensors that it was counted with
    message: Said | None  # reason why it was not counted on the meta device; None if it was


def count_model(
    config: ModelConfig,
    batch_size: int,
    sequence_length: int | None = None,
    *,
    checkpointing: bool = False,
    mode: Mode = "training",
) -> ModelCount:
    """Counts one step of `batch_size` samples, which does not depend on the number format. With
    `checkpointing`, each block is recomputed. Inference is a forward pass in evaluation mode.
    Prefill is that of a prompt, with only its last token's logits. Decoding is that of the last
    token, with earlier keys and values in a cache. Raises ModelError if the model cannot be built,
    UnsupportedError without cache or blocks, and CountError if all three kinds of tensors fail."""
    failures = dict[Means, Said]()
    reasons = None
    for means in get_args(Means):
        try:
            counted = _count(config, batch_size, sequence_length, checkpointing, mode, means)
            return replace(counted, message=reasons)
        except (ModelError, UnsupportedError):
            raise
        except Exception as error:
            failures[means] = _first_line(error)
        reasons = joined(Said(_NOT_ON[name], why=why) for name, why in failures.items())
    if len(set(failures.values())) == 1:
        reasons = failures["meta"]
    if config.inputs:
        inputs = ", ".join(f"{name}={list(sample)}" for name, sample in config.inputs.items())
        raise CountError(
            Said("named_inputs_not_counted", model=config.name, inputs=inputs, why=reasons)
        )
    shape = [batch_size, *(config.sample_shape or [sequence_length or config.sequence_length or 1])]
    raise CountError(Said("cannot_be_counted", model=config.name, shape=str(shape), why=reasons))


def _first_line(error: Exception) -> Said:
    """Sentence of an error of ours, or first line of any other error."""
    if isinstance(error, SaidError):
        return error.said
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return as_told(lines[0])


def _count(
    config: ModelConfig,
    batch_size: int,
    sequence_length: int | None,
    checkpointing: bool,
    mode: Mode,
    means: Means,
) -> ModelCount:
    """Counts with one kind of tensors. Raises CountError on the CPU if the model does not fit in
    memory."""
    if means == "cpu":
        with _tensors("meta"):
            parameters = list(build(config).parameters())
        stored = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        needed = 2 * stored  # weights and gradients
        available = psutil.virtual_memory().available
        if needed > available:
            raise CountError(Said("count_needs_memory", need=needed, free=available))
    fused = means != "cpu"
    training = mode == "training"
    with _tensors(means) as device, torch.set_grad_enabled(training):
        model = build(config).train(training)
        if checkpointing:
            enable_checkpointing(model)
        batch = make_batch(config, batch_size, sequence_length, device=device)
        require_positions(model, batch)
        generate = None
        if mode in ("prefill", "decoding"):
            with fused_operators() if fused else nullcontext():
                generate = generating(mode, model, batch.inputs, model)
        alive: list[object] = []  # during backward, as by a training loop's variable

        def step() -> torch.Tensor:
            output = generate() if generate else model(batch.inputs)
            alive[:] = [output]
            if training:
                return loss(output, batch.targets, config.task)
            return first_tensor(output)

        try:
            counted = count(model, step, backward=training, fused=fused)
        except CountError as error:
            if training or "does not require grad" not in str(error.__cause__):
                raise
            with torch.enable_grad():  # the model computes gradients itself, such as forces
                counted = count(model, step, backward=False, fused=fused)
        return ModelCount(counted, model, means, None)


@contextmanager
def _tensors(means: Means) -> Iterator[str]:
    """Makes new tensors of this kind while entered, and yields their device."""
    device = "meta" if means == "meta" else "cpu"
    factory = (
        FakeTensorMode(allow_non_fake_inputs=True) if means == "fake" else torch.device(device)
    )
    with factory, KnownValues() if means == "meta" else nullcontext():
        yield device
