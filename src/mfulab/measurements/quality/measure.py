"""Trains a small digit CNN and a cheaper version of it, and compares accuracy on held-out images,
time, FLOPs and bytes."""

import copy
import json
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import torch
from torch import nn

from mfulab.core.groups import ExecutionConfig, ModelConfig, PrecisionConfig
from mfulab.core.measurement import Measured
from mfulab.device.compute import prepare
from mfulab.device.cpu import cpu
from mfulab.flops.count import count
from mfulab.measurements.quality import Compression, Pruned, QualityConfig, QualityRow
from mfulab.models.build import Batch
from mfulab.models.convolutional import small_digits
from mfulab.models.feeding import handwritten
from mfulab.models.pruning import prune
from mfulab.models.quantised import quantise, weight_bytes
from mfulab.models.step import distillation_loss
from mfulab.timing.device_timer import DeviceTimer
from mfulab.timing.repetitions import HostTimer
from mfulab.timing.statistics import Stats, mean_half_width, median_interval

TRAINED = 1200  # number of images to train on; the images after them are held out
EPOCHS = 12
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
ALPHA = 0.7  # weight of the teacher's part in the loss
TEMPERATURE = 4.0  # softens the logits of teacher and student
ROUNDS = 15
WINDOW_S = 0.03
ARGUMENTS: dict[str, dict[str, Any]] = {
    "pooled": {"pooled": 1},
    "repeatedly_pooled": {"pooled": 2},
    "separable": {"separable": True},
    "student": {"channels": 4, "hidden": 32},
    "distilled": {"channels": 4, "hidden": 32},
}


def measure(config: QualityConfig, folder: Path) -> Measured:
    """Returns one row, and one sample per training: accuracy and loss of the whole model and of the
    cheaper one."""
    device, threads = prepare(config.device)
    # more threads do not speed up so small a batch, and slow it down if other programs run
    torch.set_num_threads(1)
    trained, held_out = digits(device)
    seeds = range(config.seed, config.seed + config.trainings)
    trainings = [_train_both(config.compression, seed, trained, held_out) for seed in seeds]
    torch.set_num_threads(threads)
    models, validation_losses, samples = zip(*trainings, strict=True)
    whole, cheaper = models[-1]
    of_whole = [sample["whole_percent"] for sample in samples]
    of_cheaper = [sample["cheaper_percent"] for sample in samples]
    changes = [after - before for before, after in zip(of_whole, of_cheaper, strict=True)]
    mean_losses = [round(fmean(epoch), 5) for epoch in zip(*validation_losses, strict=True)]
    row = QualityRow.of(
        config,
        accuracy_percent=fmean(of_cheaper),
        accuracy_half_points=mean_half_width(of_cheaper),
        whole_accuracy_percent=fmean(of_whole),
        accuracy_change_points=fmean(changes),
        change_half_points=mean_half_width(changes),
        trainings=len(samples),
        learning_rate=LEARNING_RATE,
        validation_loss=fmean(sample["cheaper_loss"] for sample in samples),
        whole_validation_losses=json.dumps(mean_losses),
        flops=_flops(_architecture(config.compression, whole)),
        whole_flops=_flops(whole),
        weight_bytes=weight_bytes(cheaper),
        whole_weight_bytes=weight_bytes(whole),
        **_time_columns(whole, cheaper, held_out.inputs[:BATCH_SIZE]),
    )
    return Measured(row, samples)


Models = tuple[nn.Module, nn.Module]  # the whole model and the cheaper one


def _train_both(
    way: Compression, seed: int, trained: Batch, held_out: Batch
) -> tuple[Models, list[float], dict[str, float]]:
    """Trains both models from one seed. Returns them, the whole model's validation loss after each
    epoch, and a sample of the final accuracies and losses."""
    torch.manual_seed(seed)
    whole = small_digits().to(trained.inputs.device)
    losses_by_epoch = train(whole, trained, seed, held_out=held_out)
    cheaper = make_cheaper(way, whole, trained, seed)
    batch = Batch(held_out.inputs.to(next(cheaper.parameters()).dtype), held_out.targets)
    sample = {
        "training": seed,
        "whole_percent": accuracy_percent(whole, held_out),
        "cheaper_percent": accuracy_percent(cheaper, batch),
        "whole_loss": losses_by_epoch[-1],
        "cheaper_loss": validation_loss(cheaper, batch),
    }
    return (whole, cheaper), losses_by_epoch, sample


def make_cheaper(way: Compression, whole: nn.Module, trained: Batch, seed: int) -> nn.Module:
    """Makes the cheaper model: either trained from scratch, or derived from the trained `whole`.
    Raises UnsupportedError if the device has no integer matmul for an int8 way."""
    model = _architecture(way, whole)
    if way in ARGUMENTS:
        train(model, trained, seed, whole if way == "distilled" else None)
    # int8 weights have a fast kernel with bf16 activations, and none with fp32
    dtype = torch.bfloat16 if way in ("bf16", "weight_int8") else torch.float32
    model = model.to(dtype)
    if way.endswith("int8"):
        execution = ExecutionConfig(name=way, quantisation=way)  # type: ignore[arg-type]
        precision = PrecisionConfig(name=way, dtype=str(dtype).removeprefix("torch."))
        batch = Batch(trained.inputs.to(dtype), trained.targets)
        model, _ = quantise(model, batch, execution, precision)
    return model


def _architecture(way: Compression, whole: nn.Module) -> nn.Module:
    """Makes the cheaper model untrained if it has an architecture of its own, else as a copy of
    `whole`, pruned if so requested."""
    if way in ARGUMENTS:
        return small_digits(**ARGUMENTS[way]).to(next(whole.parameters()).device)
    model = copy.deepcopy(whole)
    if way in get_args(Pruned):
        config = {
            "name": way,
            "_target_": "",
            "input_shape": [1, 8, 8],
            "pruning": way,
            "pruned_share": 0.5,
        }
        prune(model, ModelConfig.model_validate(config))
    return model


def _flops(model: nn.Module) -> int:
    """Forward FLOPs per image."""
    model = copy.deepcopy(model).to("meta")
    counted = count(model, lambda: model(torch.empty(1, 1, 8, 8, device="meta")), backward=False)
    return counted.operations.sum("forward").flops


def _time_columns(
    whole: nn.Module, cheaper: nn.Module, inputs: torch.Tensor
) -> dict[str, float | None]:
    """Times forward passes of both models alternately, so that a disturbance hits both. Returns the
    row's time columns."""
    timer = (
        DeviceTimer(inputs.device) if inputs.is_cuda else HostTimer(cpu().last_level_cache_bytes)
    )
    converted = inputs.to(next(cheaper.parameters()).dtype)
    calls = [lambda: whole(inputs), lambda: cheaper(converted)]
    times: list[list[float]] = [[], []]
    with torch.inference_mode():
        counts = []
        for call in calls:
            shortest_s = min(timer.time(call, 3).time_s for _ in range(3))
            counts.append(max(1, round(WINDOW_S / shortest_s)))
        for turn in range(ROUNDS):
            for index in (0, 1) if turn % 2 else (1, 0):
                times[index].append(timer.time(calls[index], counts[index]).time_s)
    ratios = [100 * after / before for before, after in zip(*times, strict=True)]
    low, high = median_interval(ratios) or (None, None)
    return {
        "time_s": Stats(times[1]).median,
        "time_percent": Stats(ratios).median,
        "time_low_percent": low,
        "time_high_percent": high,
        "batch_size": len(inputs),
        "measured_s": ROUNDS * 2 * WINDOW_S,
    }


def digits(device: torch.device) -> tuple[Batch, Batch]:
    """Returns the training images and the held-out images, each with their digits as targets.
    Inputs have the shape [images, 1, 8, 8] and values from 0 to 1."""
    images, targets = (values.to(device) for values in handwritten())
    images = images.unsqueeze(1) / 16
    return Batch(images[:TRAINED], targets[:TRAINED]), Batch(images[TRAINED:], targets[TRAINED:])


def train(
    model: nn.Module,
    batch: Batch,
    seed: int,
    teacher: nn.Module | None = None,
    held_out: Batch | None = None,
) -> list[float]:
    """Trains `model` in place with Adam. Returns the loss on `held_out` after each epoch, or an
    empty list without it.

    With a teacher the loss is α · T² · KL + (1 − α) · cross-entropy, α = 0.7, T = 4.
    """
    optimizer = torch.optim.Adam(model.train().parameters(), lr=LEARNING_RATE)
    order = torch.Generator().manual_seed(seed)
    losses = list[float]()
    for _ in range(EPOCHS):
        shuffled = torch.randperm(len(batch.inputs), generator=order).to(batch.inputs.device)
        for chosen in shuffled.split(BATCH_SIZE):
            output = model(batch.inputs[chosen])
            loss = nn.functional.cross_entropy(output, batch.targets[chosen])
            if teacher is not None:
                with torch.no_grad():
                    teacher_logits = teacher(batch.inputs[chosen])
                distilled = distillation_loss(output, teacher_logits, TEMPERATURE)
                loss = ALPHA * distilled + (1 - ALPHA) * loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if held_out:
            losses.append(validation_loss(model, held_out))
    model.eval().requires_grad_(requires_grad=False)
    return losses


@torch.no_grad()
def validation_loss(model: nn.Module, batch: Batch) -> float:
    """Mean cross-entropy of the batch."""
    return float(nn.functional.cross_entropy(model(batch.inputs).float(), batch.targets))


def accuracy_percent(model: nn.Module, batch: Batch) -> float:
    """Percentage of images whose largest logit is that of their digit."""
    return 100 * float((model(batch.inputs).argmax(1) == batch.targets).double().mean())
