"""Work of one step: in training forward, loss, backward and optimiser, in inference forward without gradients, in
decoding one more token of each sequence."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from mfulab.models.build import Batch, loss, make_batch
from mfulab.models.decoding import decoder
from mfulab.schema.configs import ModelConfig, PrecisionConfig, WorkloadConfig
from mfulab.schema.errors import UnsupportedError

StepFunction = Callable[[], torch.Tensor]


def autocast(precision: PrecisionConfig, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context in which forward and loss run: torch.autocast where the precision asks for it."""
    if not precision.autocast:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision.dtype))


def parameter_dtype(precision: PrecisionConfig) -> torch.dtype:
    """The dtype of parameters and float inputs; float32 under autocast."""
    if precision.dtype in ("float8_e4m3fn", "int8"):
        raise UnsupportedError(
            f"precision={precision.name}: whole models run in floats of 16 bits or more; use a matmul"
        )
    return torch.float32 if precision.autocast else getattr(torch, precision.dtype)


class _Samples(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Endless random samples, each drawn on the host as a decoder would make it."""

    def __init__(self, config: ModelConfig, sequence_length: int | None) -> None:
        self._config, self._sequence_length = config, sequence_length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            one = make_batch(self._config, 1, self._sequence_length)
            yield one.inputs[0], one.targets[0]


def fed(
    model: Callable[[Any], Any],
    batch: Batch,
    config: ModelConfig,
    workload: WorkloadConfig,
    sequence_length: int | None,
) -> Callable[[Any], Any]:
    """`model` with a new batch before each call: from a DataLoader, copied over `batch` where that lies."""
    loader = DataLoader(
        _Samples(config, sequence_length),
        batch_size=len(batch.inputs),
        num_workers=workload.loader_workers,
        pin_memory=batch.inputs.is_cuda,
    )
    batches = iter(loader)

    def call(inputs: Any) -> Any:
        drawn, targets = next(batches)
        batch.inputs.copy_(drawn, non_blocking=True)
        batch.targets.copy_(targets, non_blocking=True)
        return model(inputs)

    return call


def inference_step(
    model: Callable[[Any], Any], batch: Batch, precision: PrecisionConfig, device: torch.device
) -> StepFunction:
    """Forward under torch.no_grad; the model's output is returned as it is."""
    return _without_gradients(lambda: model(batch.inputs), precision, device)


def decoding_step(
    model: torch.nn.Module,
    call: Callable[..., Any],
    batch: Batch,
    precision: PrecisionConfig,
    device: torch.device,
) -> StepFunction:
    """The last token of each sequence under torch.no_grad, as `call` computes it, from the others in a cache.

    Raises UnsupportedError if `model` keeps no cache.
    """
    with torch.no_grad(), autocast(precision, device):
        decode = decoder(model, batch.inputs, call)
    return _without_gradients(decode, precision, device)


def _without_gradients(
    compute: Callable[[], Any], precision: PrecisionConfig, device: torch.device
) -> Callable[[], Any]:
    def step() -> Any:
        with torch.no_grad(), autocast(precision, device):
            return compute()

    return step


def training_step(
    model: Callable[[Any], Any],
    parameters: list[torch.nn.Parameter],
    batch: Batch,
    task: Any,
    workload: WorkloadConfig,
    precision: PrecisionConfig,
    device: torch.device,
    capturable: bool = False,
) -> StepFunction:
    """Forward, loss and backward for each micro-batch, then clipping, optimiser step and zero_grad; returns the loss.

    `capturable` keeps the optimiser's counters on the device, which a CUDA graph needs. Under fp16 autocast the loss is
    scaled, as mixed-precision training has it (Micikevicius et al. 2018, arXiv:1710.03740).
    """
    optimizer = _optimizer(parameters, workload, capturable)
    scaled = precision.autocast and precision.dtype == "float16"
    if scaled and capturable:
        raise UnsupportedError("execution=cuda_graph: fp16 loss scaling reads from the device in each step; use bf16")
    scaler = torch.amp.GradScaler(device.type, enabled=scaled)

    def step() -> torch.Tensor:
        for _ in range(workload.gradient_accumulation):
            with autocast(precision, device):
                value = loss(model(batch.inputs), batch.targets, task)
            scaler.scale(value / workload.gradient_accumulation).backward()
        if workload.gradient_clipping is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, workload.gradient_clipping)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=not capturable)
        return value.detach()

    return step


def _optimizer(
    parameters: list[torch.nn.Parameter], workload: WorkloadConfig, capturable: bool
) -> torch.optim.Optimizer:
    if workload.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=workload.learning_rate)
    kind = torch.optim.Adam if workload.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=workload.learning_rate, capturable=capturable)
