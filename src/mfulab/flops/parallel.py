"""On paper: memory on each of several devices, and the bytes that each sends in a step, for what fits on none alone.

A ring all-reduce of n bytes over d devices sends 2·n·(d−1)/d from each; a reduce-scatter or an all-gather half of that
(Patarasuk and Yuan 2009).
"""

import math
from dataclasses import dataclass
from typing import Literal

ZeroStage = Literal[0, 1, 2, 3]
ELEMENT_BYTES, PARAMETER_BYTES = 2, 16  # mixed precision: of a weight or activation; with gradient and Adam's state


@dataclass(frozen=True)
class Share:
    """One device's part.

    Attributes:
        memory_bytes: weights, gradients and optimiser state; activations where the method divides them.
        sent_bytes: sent by each device in each step.
    """

    memory_bytes: int
    sent_bytes: int


def all_reduce_bytes(size_bytes: int, devices: int) -> int:
    """Sent by each device to sum `size_bytes` over all of them and give the sum to all."""
    return round(2 * size_bytes * (devices - 1) / devices)


def all_gather_bytes(size_bytes: int, devices: int) -> int:
    """Sent by each device to give all of them the whole of `size_bytes`, of which each holds a part."""
    return round(size_bytes * (devices - 1) / devices)


def data_parallel(parameters: int, devices: int, stage: ZeroStage = 0) -> Share:
    """Data parallelism, plain (stage 0) or with ZeRO; FSDP's full sharding is stage 3, its `SHARD_GRAD_OP` stage 2.

    Rajbhandari et al. 2020 (arXiv:1910.02054), table 1 and section 7: stage 1 divides the optimiser state, 2 the
    gradients too, 3 the weights too; stages 0–2 send the gradients once around (reduce-scatter and all-gather), stage 3
    gathers the weights twice and scatters the gradients once: 1.5 times as much.

    Args:
        parameters: of the model.
        devices: how many share the work.
        stage: what is divided.
    """
    size = parameters * ELEMENT_BYTES
    weights = size / devices if stage >= 3 else size
    gradients = size / devices if stage >= 2 else size
    state = (parameters * PARAMETER_BYTES - 2 * size) / (devices if stage >= 1 else 1)
    sent = 3 * all_gather_bytes(size, devices) if stage == 3 else all_reduce_bytes(size, devices)
    return Share(round(weights + gradients + state), sent)


def tensor_parallel(parameters: int, devices: int, *, layers: int, width: int, tokens: int) -> Share:
    """Each layer's matrices divided over the devices; `tokens` in the batch altogether.

    Shoeybi et al. 2019 (arXiv:1909.08053), section 3: two all-reduces of [tokens, width] a layer forward, two backward.
    """
    each = all_reduce_bytes(tokens * width * ELEMENT_BYTES, devices)
    return Share(round(parameters * PARAMETER_BYTES / devices), 4 * layers * each)


def pipeline_parallel(parameters: int, devices: int, *, layers: int, width: int, tokens: int) -> Share:
    """Layers divided over the devices: each hands [tokens, width] on forward, and its gradient back.

    The share is that of the device with most layers, all taken for equally large.
    """
    boundaries = 0 if devices == 1 else 2
    held = fullest_stage(layers, devices)
    return Share(round(parameters * PARAMETER_BYTES * held), boundaries * tokens * width * ELEMENT_BYTES)


def fullest_stage(layers: int, devices: int) -> float:
    """Share of all layers on the device that has most of them."""
    return math.ceil(layers / devices) / layers


def pipeline_bubble(devices: int, micro_batches: int) -> float:
    """Share of the time in which a device of a pipeline waits: (d−1)/(m+d−1) (Huang et al. 2019, arXiv:1811.06965)."""
    return (devices - 1) / (micro_batches + devices - 1)


WITH_DATA = ("data parallel", "ZeRO 1", "ZeRO 2", "ZeRO 3, FSDP")  # by ZeRO's stage
MICRO_BATCHES = 4
"""A device of a pipeline's: from so many on its bubble is small (Huang et al. 2019, section 2.3)."""


def plans(
    parameters: int,
    devices: int,
    *,
    layers: int | None,
    key_value_heads: int | None,
    width: int,
    tokens: int,
    flops: int | None = None,
) -> list[dict[str, object]]:
    """One row for each way to train a transformer with Adam in mixed precision on several devices.

    A pipeline needs a layer on each device. A tensor split needs equally many heads of keys and values on each: beyond
    them it copies their projections, and memory is no longer divided by all devices. Where that is not so, or a number
    is unknown, the row has no number but `reason`.

    `flops` are those of one step of the counted batch, on the device with most. Each device of data parallelism has
    such a batch of its own; tensor and pipeline parallelism share one. A pipeline's row has its bubble in percent where
    its stages are equal.
    """
    stages = {name: data_parallel(parameters, devices, stage) for stage, name in enumerate(WITH_DATA)}  # type: ignore[arg-type]
    ways: dict[str, tuple[Share | None, float, str | None]] = {name: (share, 1, None) for name, share in stages.items()}
    size = {"layers": layers or 0, "width": width, "tokens": tokens}
    unknown = "unknown number of layers" if layers is None else None
    no_split = unknown or ("unknown number of key-value heads" if key_value_heads is None else None)
    if key_value_heads and not no_split and key_value_heads % devices:
        no_split = f"{key_value_heads} key-value heads do not divide into {devices}"
    split = None if no_split else tensor_parallel(parameters, devices, **size)
    ways["tensor parallel"] = split, 1 / devices, no_split
    no_pipeline = unknown or (f"{layers} layers are fewer than {devices} devices" if (layers or 0) < devices else None)
    pipeline = None if no_pipeline else pipeline_parallel(parameters, devices, **size)
    ways["pipeline parallel"] = pipeline, fullest_stage(layers, devices) if layers else 0, no_pipeline
    equal = pipeline is not None and size["layers"] % devices == 0
    bubble = 100 * pipeline_bubble(devices, MICRO_BATCHES * devices)
    return [
        {
            "method": name,
            "devices": devices,
            "flops": None if flops is None or share is None else round(flops * part),
            "memory_bytes": share.memory_bytes if share else None,
            "sent_bytes": share.sent_bytes if share else None,
            "bubble_percent": bubble if equal and name == "pipeline parallel" else None,
            "reason": reason,
        }
        for name, (share, part, reason) in ways.items()
    ]
