"""Peak memory of a step by part, counted without its device; whether it fits one, and the largest batch that does."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from mfulab.core.errors import ConfigurationError, UnsupportedError, unknown
from mfulab.core.formats import ELEMENT_BYTES
from mfulab.core.groups import ModelConfig
from mfulab.device.datasheets import Datasheet, UnknownDeviceError, find
from mfulab.flops.memory import STATE_BYTES, Optimizer, inference_peak_bytes, training_memory, training_peak_bytes
from mfulab.mfu.models import model_config
from mfulab.models.work import check

FORMATS = {**{name: (name, False) for name in ("fp32", "bf16", "fp16")}, "amp_bf16": ("bf16", True)}
FORMATS["amp_fp16"] = ("fp16", True)
# torch gives cuBLAS 32 MiB on Hopper for each thread that multiplies: forward's, and the backward pass's
# (ATen/cuda/CublasHandlePool.cpp). Of other devices it was not compared with a measured peak.
HOPPER, WORKSPACE_BYTES = "9.0", 32 << 20
UNKNOWN = "Not in it: the driver's context (some 0.5 GB on an NVIDIA GPU), fragmentation, buffers of communication."
NO_WORKSPACE = "The libraries' workspace is not known here."
SECANTS, MOST_BATCH = 8, 1 << 20  # of the search for the largest batch


@dataclass(frozen=True)
class Fit:
    """Peak memory of one step on one device in bytes; the parts are the largest of each, and not all at one time."""

    model: str
    device: str
    batch_size: int
    parameters_bytes: int  # under autocast the fp32 ones
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int  # saved for the backward pass
    inputs_bytes: int
    workspace_bytes: int | None  # of libraries; None where it is not known
    peak_bytes: int  # what is alive at once, the known workspace included
    capacity_bytes: int  # by the datasheet, 10⁹ a GB
    fits: bool
    largest_batch: int  # 0 where one sample does not fit
    says: str  # what is not counted


def fits(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    batch_size: int = 1,
    *,
    optimizer: Optimizer = "adamw",
    device: str,
    precision: str = "bf16",
    sequence_length: int | None = None,
    checkpointing: bool = False,
    mode: Literal["training", "inference"] = "training",
) -> Fit:
    """Predicts the peak memory of a model's step on a device, and the largest batch that fits.

    Args:
        model: a name in `config/model/`, a YAML file like those, or what stands in one.
        batch_size: samples of a step.
        optimizer: adam, adamw, adam_8bit or sgd.
        device: its name as a driver reports it, or its PCI id.
        precision: fp32, bf16 or fp16 for everything; amp_bf16 or amp_fp16 for autocast over fp32 weights.
        sequence_length: tokens a sample; the model's own where not given.
        checkpointing: whether each block is recomputed in the backward pass.
        mode: training, or inference, which keeps nothing.

    Raises ConfigurationError for an unknown model, device, optimizer or precision, and for a model that cannot be
    built or counted.
    """
    config = model_config(model, sequence_length=sequence_length)
    for name, value, choices in (("precision", precision, FORMATS), ("optimizer", optimizer, STATE_BYTES)):
        if value not in choices:
            raise unknown(name, value, choices)
    if mode not in ("training", "inference"):
        raise unknown("mode", mode, ("training", "inference"))
    if batch_size < 1:
        raise ConfigurationError(f"batch_size={batch_size}: give 1 or more")
    check(config, sequence_length, 1, [mode])
    sheet, capacity = _device(device)

    @cache
    def told(size: int) -> Fit:
        counted = _counted(config, size, sequence_length, checkpointing, mode)
        return _fit(config, counted, (size, sequence_length), (sheet, capacity), optimizer, precision, mode)

    return replace(
        told(batch_size), largest_batch=largest_batch(lambda size: told(size).peak_bytes, capacity, batch_size)
    )


def largest_batch(peak_bytes: Callable[[int], int], capacity: int, first: int) -> int:
    """The largest batch whose peak fits, of a peak that grows with the batch, nearly in a straight line.

    Secants from `first`, the batch that is asked for, and then halves, until a batch fits and the next does not.
    """
    fitting, failing, guess = 0, MOST_BATCH, first
    for step in itertools.count():
        here = peak_bytes(guess)
        fitting, failing = (guess, failing) if here <= capacity else (fitting, guess)
        if failing - fitting <= 1:
            return fitting
        if step >= SECANTS:
            guess = (fitting + failing) // 2
            continue
        other = 2 * first if guess == first else first
        slope = max(1.0, (here - peak_bytes(other)) / (guess - other))
        wanted = math.floor(guess + (capacity - here) / slope)
        guess = min(max(wanted if wanted != guess else guess + 1, fitting + 1), failing - 1)
    raise AssertionError


def _device(device: str) -> tuple[Datasheet, int]:
    try:
        sheet = find(device)
    except UnknownDeviceError as error:
        raise ConfigurationError(f"device={device}: {error}") from error
    if sheet.memory_gb is None:
        raise ConfigurationError(f"device={device}: the datasheet prints no memory")
    return sheet, round(sheet.memory_gb * 1e9)


def _counted(config: ModelConfig, size: int, length: int | None, checkpointing: bool, mode: Any) -> Any:
    from mfulab.flops.count import CountError
    from mfulab.models.build import ModelError
    from mfulab.models.counted import count_model

    try:
        return count_model(config, size, length, checkpointing=checkpointing, mode=mode)
    except (ModelError, CountError, UnsupportedError) as error:
        raise ConfigurationError(" ".join(str(error).split())) from error


def _fit(
    config: ModelConfig,
    counted: Any,
    samples: tuple[int, int | None],
    on: tuple[Datasheet, int],
    optimizer: Optimizer,
    precision: str,
    mode: str,
) -> Fit:
    (size, length), (sheet, capacity), (name, autocast) = samples, on, FORMATS[precision]
    element, count = int(ELEMENT_BYTES[name]), counted.count
    tensors = list(counted.model.parameters())
    parameters = sum(each.numel() for each in tensors)
    trainable = sum(each.numel() for each in tensors if each.requires_grad)
    training = mode == "training"
    held = training_memory(
        parameters,
        trainable=trainable if training else 0,
        element_bytes=element,
        autocast=autocast,
        optimizer=optimizer,
        activation_elements=count.saved.elements if training else 0,
        activation_fixed_bytes=count.saved.fixed_bytes if training else 0,
    )
    known: dict[str, Any] = {"element_bytes": element, "autocast": autocast}
    alive = 4 * count.peak.elements, count.peak.fixed_bytes
    if training:
        copies = int(optimizer != "sgd")  # torch's default, foreach, updates all parameters at once
        peak = training_peak_bytes(parameters, trainable, *alive, **known, optimizer=optimizer, optimizer_copies=copies)
    else:
        peak = inference_peak_bytes(parameters, *alive, **known)
    if config.vocabulary_size is None:
        inputs = size * math.prod(config.input_shape or ()) * element
    else:  # int64, and as many targets
        inputs = size * (length or config.sequence_length or 1) * 8 * (1 + (config.task == "language_modeling"))
    workspace = WORKSPACE_BYTES * (1 + training) if sheet.architecture == HOPPER else None
    peak += inputs + (workspace or 0)
    return Fit(
        model=config.name,
        device=sheet.device,
        batch_size=size,
        parameters_bytes=parameters * (4 if autocast else element),
        gradients_bytes=held.gradients,
        optimizer_bytes=held.optimizer_state,
        activations_bytes=held.activations,
        inputs_bytes=inputs,
        workspace_bytes=workspace,
        peak_bytes=peak,
        capacity_bytes=capacity,
        fits=peak <= capacity,
        largest_batch=0,
        says=UNKNOWN if workspace else f"{NO_WORKSPACE} {UNKNOWN}",
    )
