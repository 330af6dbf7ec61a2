"""Trains a small digit CNN and a cheaper one side by side: accuracy on held-out images, time, FLOPs
and bytes."""

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

TRAINED = 1200  # the first images; those behind are held out
EPOCHS = 12
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
ALPHA = 0.7
TEMPERATURE = 4.0  # the teacher's share of the loss, and what softens its classes
ROUNDS = 15
WINDOW_S = 0.03
ARGUMENTS: dict[str, dict[str, Any]] = {
    "pooled": {"pooled": True},
    "separable": {"separable": True},
    "student": {"channels": 4, "hidden": 32},
    "distilled": {"channels": 4, "hidden": 32},
}


def measure(config: QualityConfig, folder: Path) -> Measured:
    """One row, and a sample a training: the accuracy of the whole model and of the cheaper one."""
    device, threads = prepare(config.device)
    torch.set_num_threads(
        1
    )  # so small a batch trains no faster with more, and far slower beside other programs
    trained, held_out = digits(device)
    seeds = range(config.seed, config.seed + config.trainings)
    trainings = [_train_both(config.compression, seed, trained, held_out) for seed in seeds]
    torch.set_num_threads(threads)
    models, courses, samples = zip(*trainings, strict=True)
    whole, cheaper = models[-1]
    of_whole, of_cheaper = (
        [sample[f"{name}_percent"] for sample in samples] for name in ("whole", "cheaper")
    )
    changes = [after - before for before, after in zip(of_whole, of_cheaper, strict=True)]
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
        whole_validation_losses=json.dumps(
            [round(fmean(epoch), 5) for epoch in zip(*courses, strict=True)]
        ),
        flops=_flops(_architecture(config.compression, whole)),
        whole_flops=_flops(whole),
        weight_bytes=weight_bytes(cheaper),
        whole_weight_bytes=weight_bytes(whole),
        **_time_columns(whole, cheaper, held_out.inputs[:BATCH_SIZE]),
    )
    return Measured(row, samples)


Models = tuple[nn.Module, nn.Module]  # the whole one, and the cheaper


def _train_both(
    way: Compression, seed: int, trained: Batch, held_out: Batch
) -> tuple[Models, list[float], dict[str, float]]:
    """Both models, the whole one's loss after each epoch, and what both reach in the end."""
    torch.manual_seed(seed)
    whole = small_digits().to(trained.inputs.device)
    course = train(whole, trained, seed, held_out=held_out)
    cheaper = make_cheaper(way, whole, trained, seed)
    batch = Batch(held_out.inputs.to(next(cheaper.parameters()).dtype), held_out.targets)
    sample = {
        "training": seed,
        "whole_percent": accuracy_percent(whole, held_out),
        "cheaper_percent": accuracy_percent(cheaper, batch),
        "whole_loss": course[-1],
        "cheaper_loss": validation_loss(cheaper, batch),
    }
    return (whole, cheaper), course, sample


def make_cheaper(way: Compression, whole: nn.Module, trained: Batch, seed: int) -> nn.Module:
    """The cheaper model, trained or made of the trained whole one; UnsupportedError without such an
    integer matmul."""
    model = _architecture(way, whole)
    if way in ARGUMENTS:
        train(model, trained, seed, whole if way == "distilled" else None)
    # fp32 has no fast kernel for weights
    dtype = torch.bfloat16 if way in ("bf16", "weight_int8") else torch.float32
    model = model.to(dtype)
    if way.endswith("int8"):
        execution = ExecutionConfig(name=way, quantisation=way)  # type: ignore[arg-type]
        precision = PrecisionConfig(name=way, dtype=str(dtype).removeprefix("torch."))
        model, _ = quantise(
            model, Batch(trained.inputs.to(dtype), trained.targets), execution, precision
        )
    return model


def _architecture(way: Compression, whole: nn.Module) -> nn.Module:
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
    model = copy.deepcopy(model).to("meta")
    counted = count(model, lambda: model(torch.empty(1, 1, 8, 8, device="meta")), backward=False)
    return counted.operations.sum("forward").flops


def _time_columns(
    whole: nn.Module, cheaper: nn.Module, inputs: torch.Tensor
) -> dict[str, float | None]:
    """Times of a pass of both models, round by round in turn, so that what disturbs one disturbs
    the other."""
    timer = (
        DeviceTimer(inputs.device) if inputs.is_cuda else HostTimer(cpu().last_level_cache_bytes)
    )
    converted = inputs.to(next(cheaper.parameters()).dtype)
    calls = [lambda: whole(inputs), lambda: cheaper(converted)]
    times: list[list[float]] = [[], []]
    with torch.inference_mode():
        counts = [
            max(1, round(WINDOW_S / min(timer.time(call, 3).time_s for _ in range(3))))
            for call in calls
        ]
        for turn in range(ROUNDS):
            for which in (0, 1) if turn % 2 else (1, 0):
                times[which].append(timer.time(calls[which], counts[which]).time_s)
    ratios = [100 * after / before for before, after in zip(*times, strict=True)]
    low, high = median_interval(ratios) or (None, None)
    time_s, percent = (Stats(values).median for values in (times[1], ratios))
    columns = {
        "time_s": time_s,
        "time_percent": percent,
        "time_low_percent": low,
    }
    return columns | {
        "time_high_percent": high,
        "batch_size": len(inputs),
        "measured_s": ROUNDS * 2 * WINDOW_S,
    }


def digits(device: torch.device) -> tuple[Batch, Batch]:
    """The images to train on and those held out: [images, 1, 8, 8] from 0 to 1, and their
    digits."""
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
    """Trains in place by Adam; gives the loss of `held_out`, if any, after each epoch.

    With a teacher the loss is α · T² · KL + (1 − α) · cross-entropy, α = 0.7, T = 4.
    """
    optimizer = torch.optim.Adam(model.train().parameters(), lr=LEARNING_RATE)
    order = torch.Generator().manual_seed(seed)
    losses = list[float]()
    for _ in range(EPOCHS):
        for chosen in (
            torch.randperm(len(batch.inputs), generator=order)
            .to(batch.inputs.device)
            .split(BATCH_SIZE)
        ):
            output = model(batch.inputs[chosen])
            loss = nn.functional.cross_entropy(output, batch.targets[chosen])
            if teacher is not None:
                with torch.no_grad():
                    taught = teacher(batch.inputs[chosen])
                loss = ALPHA * distillation_loss(output, taught, TEMPERATURE) + (1 - ALPHA) * loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses += [validation_loss(model, held_out)] if held_out else []
    model.eval().requires_grad_(requires_grad=False)
    return losses


@torch.no_grad()
def validation_loss(model: nn.Module, batch: Batch) -> float:
    """Mean cross-entropy of the batch."""
    return float(nn.functional.cross_entropy(model(batch.inputs).float(), batch.targets))


def accuracy_percent(model: nn.Module, batch: Batch) -> float:
    """Percentage of images whose largest logit is their digit's."""
    return 100 * float((model(batch.inputs).argmax(1) == batch.targets).double().mean())
