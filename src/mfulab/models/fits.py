"""Predicts peak memory of a step by parts, without the device; whether it fits, and the largest
batch that does."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from mfulab.core.errors import FEW, ConfigurationError, UnsupportedError, unknown
from mfulab.core.formats import ELEMENT_BYTES
from mfulab.core.groups import ModelConfig
from mfulab.core.said import Said, as_told, of_source, said_by
from mfulab.device.datasheets import Datasheet, UnknownDeviceError, datasheets, find, normalised
from mfulab.flops import memory
from mfulab.flops.count import CountError
from mfulab.flops.tensors import MemorySize
from mfulab.mfu.models import model_config
from mfulab.models.build import ModelError
from mfulab.models.counted import ModelCount, count_model
from mfulab.models.work import check

PRECISIONS = ("fp32", "bf16", "fp16", "amp_bf16", "amp_fp16")
MODES = ("training", "inference")
# On Hopper, torch gives cuBLAS 32 MiB for each thread that calls matmuls: one in forward and one in
# backward (ATen/cuda/CublasHandlePool.cpp). For other devices this was not compared with a measured
# peak.
HOPPER = "9.0"
WORKSPACE_BYTES = 32 << 20
UNKNOWN = "Not in it: the driver's context (some 0.5 GB on an NVIDIA GPU), fragmentation, buffers of communication."
NO_WORKSPACE = "The libraries' workspace is not known here."
SECANT_STEPS = 8
MOST_BATCH = 1 << 20  # upper limit of the search for the largest batch


@dataclass(frozen=True)
class Fit:
    """Peak memory of one step on one device, in bytes. Each part is its own maximum, so the parts
    do not add up to the peak."""

    model: str
    device: str
    batch_size: int
    parameters_bytes: int  # under autocast those in fp32
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int  # tensors saved for the backward pass
    inputs_bytes: int
    workspace_bytes: int | None  # workspace of libraries; None if unknown
    peak_bytes: int  # largest memory alive at once, including a known workspace
    capacity_bytes: int  # from the datasheet, with 10⁹ bytes per GB
    fits: bool
    largest_batch: int  # 0 if even one sample does not fit
    says: str  # text on what is not counted


def fits(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    batch_size: int = 1,
    *,
    optimizer: memory.Optimizer = "adamw",
    device: str,
    precision: str = "bf16",
    sequence_length: int | None = None,
    checkpointing: bool = False,
    mode: Literal["training", "inference"] = "training",
) -> Fit:
    """Predicts the peak memory of a model's step on a device, and the largest batch that fits.

    Args:
        model: a name in `config/model/`, a YAML file like those, or the content of one.
        batch_size: samples per step.
        optimizer: adam, adamw, adam_8bit or sgd.
        device: its name as a driver reports it, its datasheet's name, or its PCI id.
        precision: fp32, bf16 or fp16 for everything; amp_bf16 or amp_fp16 for autocast over
            fp32 weights.
        sequence_length: tokens per sample; the model's own by default.
        checkpointing: whether each block is recomputed in the backward pass.
        mode: training, or inference, which saves nothing for a backward pass.

    Raises ConfigurationError for an unknown name, and for a model that cannot be built or counted.
    """
    config = model_config(model, sequence_length=sequence_length)
    choices = (
        ("precision", precision, PRECISIONS),
        ("optimizer", optimizer, memory.STATE_BYTES),
        ("mode", mode, MODES),
    )
    for name, value, known in choices:
        if value not in known:
            raise unknown(name, value, known)
    check(config, sequence_length, 1, [mode], batch_size)
    sheet = _datasheet(device)

    @cache
    def fit_of(size: int) -> Fit:
        return _fit(
            config,
            sheet,
            sequence_length,
            size,
            optimizer=optimizer,
            precision=precision,
            checkpointing=checkpointing,
            mode=mode,
        )

    fit = fit_of(batch_size)
    most = largest_batch(lambda size: fit_of(size).peak_bytes, fit.capacity_bytes, batch_size)
    return replace(fit, largest_batch=most)


def largest_batch(peak_bytes: Callable[[int], int], capacity: int, first: int) -> int:
    """Finds the largest batch whose peak memory is at most `capacity`; 0 if there is none. The peak
    must grow with the batch, nearly linearly.

    Starts at `first` and follows secants, then bisects, until a batch fits and the next larger one
    does not.
    """
    fitting = 0
    failing = MOST_BATCH
    guess = first
    for step in itertools.count():
        peak = peak_bytes(guess)
        if peak <= capacity:
            fitting = guess
        else:
            failing = guess
        if failing - fitting <= 1:
            break
        other = 2 * first if guess == first else first
        slope = max(1.0, (peak - peak_bytes(other)) / (guess - other))
        secant = math.floor(guess + (capacity - peak) / slope)
        guess = secant if step < SECANT_STEPS else (fitting + failing) // 2
        guess = min(max(guess, fitting + 1), failing - 1)
    return fitting


def _datasheet(device: str) -> Datasheet:
    """Datasheet of a device. Raises ConfigurationError if it is unknown or prints no memory; the
    message lists similar devices if there are few."""
    try:
        sheet = find(device)
    except UnknownDeviceError as error:
        similar = _similar(device)
        choices = ", ".join(
            f"{sheet.device} ({sheet.memory_gb:g} GB)" for sheet in similar if sheet.memory_gb
        )
        reason = error.said or as_told(error)
        message = f"device={device}: {error}"
        if choices and len(similar) <= FEW:
            reason = Said("choose_product", names=choices)
            message = f"device={device}: {reason}"
        raise ConfigurationError(message, of_source(f"device={device}", reason)) from error
    if sheet.memory_gb is None:
        raise ConfigurationError(of_source(f"device={device}", Said("no_memory_printed")))
    return sheet


def _similar(device: str) -> list[Datasheet]:
    """Datasheets whose device's name contains every word of `device`."""
    words = set(normalised(device).split())
    if not words:
        return []
    return [sheet for sheet in datasheets() if words <= set(normalised(sheet.device).split())]


def _kept_and_peak(
    counted: ModelCount, optimizer: memory.Optimizer, precision: str, trains: bool
) -> tuple[memory.StepMemory, int, int]:
    """Returns the parts that a step keeps, its peak memory without inputs and workspace, and the
    bytes per stored weight."""
    element_bytes = int(ELEMENT_BYTES[precision.removeprefix("amp_")])
    is_autocast = precision.startswith("amp_")
    weight_bytes = 4 if is_autocast else element_bytes
    count = counted.count
    weights = list(counted.model.parameters())
    parameters = sum(weight.numel() for weight in weights)
    trainable = 0
    saved = MemorySize()
    if trains:
        trainable = sum(weight.numel() for weight in weights if weight.requires_grad)
        saved = count.saved
    kept = memory.training_memory(
        parameters,
        trainable=trainable,
        optimizer=optimizer,
        activation_elements=saved.elements,
        activation_fixed_bytes=saved.fixed_bytes,
        element_bytes=element_bytes,
        autocast=is_autocast,
    )
    alive = (4 * count.peak.elements, count.peak.fixed_bytes)
    if not trains:
        peak = memory.inference_peak_bytes(
            parameters, *alive, element_bytes=element_bytes, autocast=is_autocast
        )
        return kept, peak, weight_bytes
    peak = memory.training_peak_bytes(
        parameters,
        trainable,
        *alive,
        optimizer=optimizer,
        optimizer_copies=int(optimizer != "sgd"),  # torch updates all parameters at once
        element_bytes=element_bytes,
        autocast=is_autocast,
    )
    return kept, peak, weight_bytes


def _fit(
    config: ModelConfig,
    sheet: Datasheet,
    sequence_length: int | None,
    size: int,
    *,
    optimizer: memory.Optimizer,
    precision: str,
    checkpointing: bool,
    mode: Literal["training", "inference"],
) -> Fit:
    """Predicts the memory of one batch size. `largest_batch` is left at 0."""
    try:
        counted = count_model(config, size, sequence_length, checkpointing=checkpointing, mode=mode)
    except (ModelError, CountError, UnsupportedError) as error:
        raise ConfigurationError(said_by(error)) from error
    trains = mode == "training"
    kept, peak, weight_bytes = _kept_and_peak(counted, optimizer, precision, trains)
    if config.vocabulary_size is None:
        inputs = size * math.prod(config.sample_shape) * weight_bytes
    else:  # int64, with as many targets for language modeling
        tokens = size * (sequence_length or config.sequence_length or 1)
        inputs = 8 * tokens * (1 + (config.task == "language_modeling"))
    workspace = WORKSPACE_BYTES * (1 + trains) if sheet.architecture == HOPPER else None
    peak = peak + inputs + (workspace or 0)
    capacity = round((sheet.memory_gb or 0) * 1e9)
    return Fit(
        model=config.name,
        device=sheet.device,
        batch_size=size,
        parameters_bytes=weight_bytes
        * sum(weight.numel() for weight in counted.model.parameters()),
        gradients_bytes=kept.gradients,
        optimizer_bytes=kept.optimizer_state,
        activations_bytes=kept.activations,
        inputs_bytes=inputs,
        workspace_bytes=workspace,
        peak_bytes=peak,
        capacity_bytes=capacity,
        fits=peak <= capacity,
        largest_batch=0,
        says=UNKNOWN if workspace else f"{NO_WORKSPACE} {UNKNOWN}",
    )
