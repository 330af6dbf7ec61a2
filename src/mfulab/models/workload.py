"""Work of one step: in training forward, loss, backward and optimiser, in inference forward without gradients, in
decoding one more token of each sequence."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, IterableDataset

from mfulab.models.build import Batch, build, loss, make_batch, require_positions
from mfulab.models.decoding import decoder, prefiller
from mfulab.schema.configs import LEAKED_STEPS, ModelConfig, PrecisionConfig, ProfileStepConfig, WorkloadConfig
from mfulab.schema.errors import UnsupportedError

StepFunction = Callable[[], torch.Tensor]
Phase = Literal["forward", "backward", "optimiser", "other"]
Mark = Callable[[Phase], object]
"""Told that what ran since the last call was of this phase."""

SCHEDULE_STEPS = 1000  # of a cosine's half; which part of it is measured does not change what a step costs


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


def make_model(config: ProfileStepConfig, device: torch.device) -> tuple[torch.nn.Module, Batch]:
    """The model and its batch in the precision asked for; the same for the same seed of torch."""
    dtype = parameter_dtype(config.precision)
    with device:
        model = build(config.model)
    model = model.to(device=device, dtype=dtype)
    batch = make_batch(config.model, config.batch_size, config.sequence_length, device=device, dtype=dtype)
    require_positions(model, batch)
    return model, batch


class _Samples(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Endless random samples, each drawn on the host as a decoder would make it."""

    def __init__(self, config: ModelConfig, sequence_length: int | None) -> None:
        self._config, self._sequence_length = config, sequence_length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            one = make_batch(self._config, 1, self._sequence_length)
            yield one.inputs[0], one.targets[0]


def nothing(phase: Phase | None = None) -> None:
    """Ignores the mark of a phase; fetches no batch where one lies on the device."""


def feeder(
    batch: Batch, config: ModelConfig, workload: WorkloadConfig, sequence_length: int | None
) -> Callable[[], None]:
    """A function that fetches a new batch: from a DataLoader, copied over `batch` where that lies."""
    loader = DataLoader(
        _Samples(config, sequence_length),
        batch_size=len(batch.inputs),
        num_workers=workload.loader_workers,
        pin_memory=batch.inputs.is_cuda,
    )
    batches = iter(loader)

    def fetch() -> None:
        drawn, targets = next(batches)
        batch.inputs.copy_(drawn, non_blocking=True)
        batch.targets.copy_(targets, non_blocking=True)

    return fetch


def inference_step(
    model: Callable[[Any], Any],
    batch: Batch,
    precision: PrecisionConfig,
    device: torch.device,
    fetch: Callable[[], None] = nothing,
    autograd: str = "no_grad",
) -> StepFunction:
    """Forward, recorded by autograd as the workload says; the model's output is returned as it is.

    `leaked` keeps the outputs of `LEAKED_STEPS` steps, and so their graphs, as summing up losses without `item()` does.
    """
    kept: deque[Any] = deque(maxlen=LEAKED_STEPS)

    def compute() -> Any:
        fetch()
        output = model(batch.inputs)
        if autograd == "leaked":
            kept.append(output)
        return output

    return _recorded(compute, precision, device, autograd)


def generating_step(
    mode: str,
    model: torch.nn.Module,
    call: Callable[..., Any],
    batch: Batch,
    precision: PrecisionConfig,
    device: torch.device,
) -> StepFunction:
    """A step of generating text under torch.no_grad: the whole prompt (prefill), or its last token from a cache.

    Raises UnsupportedError if `model` keeps no cache.
    """
    with torch.no_grad(), autocast(precision, device):
        generate = (prefiller if mode == "prefill" else decoder)(model, batch.inputs, call)
    return _recorded(generate, precision, device, "no_grad")


def _recorded(
    compute: Callable[[], Any], precision: PrecisionConfig, device: torch.device, autograd: str
) -> Callable[[], Any]:
    record = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(autograd, contextlib.nullcontext)

    def step() -> Any:
        with record(), autocast(precision, device):
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
    fetch: Callable[[], None] = nothing,
) -> Callable[..., torch.Tensor]:
    """Forward, loss and backward for each micro-batch, then clipping, optimiser step and zero_grad; returns the loss.

    `capturable` keeps the optimiser's counters on the device, which a CUDA graph needs. Under fp16 autocast the loss is
    scaled, as mixed-precision training has it (Micikevicius et al. 2018, arXiv:1710.03740). The step takes a `Mark`,
    which hears of the end of each phase; `other` is fetching, unscaling, clipping, the schedule and zero_grad.
    """
    optimizer = _optimizer(parameters, workload, capturable)
    schedule = _schedule(optimizer, workload, capturable)
    scaled = precision.autocast and precision.dtype == "float16"
    if scaled and capturable:
        raise UnsupportedError("execution=cuda_graph: fp16 loss scaling reads from the device in each step; use bf16")
    scaler = torch.amp.GradScaler(device.type, enabled=scaled)

    def step(mark: Mark = nothing) -> torch.Tensor:
        for _ in range(workload.gradient_accumulation):
            fetch()
            mark("other")
            with autocast(precision, device):
                value = loss(model(batch.inputs), batch.targets, task)
            mark("forward")
            scaler.scale(value / workload.gradient_accumulation).backward()
            mark("backward")
        scaler.unscale_(optimizer)
        if workload.gradient_clipping is not None:
            torch.nn.utils.clip_grad_norm_(parameters, workload.gradient_clipping)
        mark("other")
        scaler.step(optimizer)
        mark("optimiser")
        scaler.update()
        schedule()
        optimizer.zero_grad(set_to_none=not capturable)
        mark("other")
        return value.detach()

    return step


def _optimizer(
    parameters: list[torch.nn.Parameter], workload: WorkloadConfig, capturable: bool
) -> torch.optim.Optimizer:
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    options: dict[str, Any] = {} if workload.optimizer == "sgd" else {"capturable": capturable}
    if workload.optimizer_implementation != "default":  # torch's own choice: a loop on a CPU, foreach on a GPU
        options |= {name: workload.optimizer_implementation == name for name in ("foreach", "fused")}
    try:
        return kinds[workload.optimizer](parameters, lr=workload.learning_rate, **options)
    except RuntimeError as error:
        asked = f"workload.optimizer_implementation={workload.optimizer_implementation}"
        raise UnsupportedError(f"{asked}: {error}") from error


def _schedule(optimizer: torch.optim.Optimizer, workload: WorkloadConfig, capturable: bool) -> Callable[[], None]:
    if workload.learning_rate_schedule == "constant":
        return nothing
    if capturable:
        raise UnsupportedError("execution=cuda_graph: a captured step keeps its learning rate; use a constant one")
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SCHEDULE_STEPS).step
