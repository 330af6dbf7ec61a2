"""Work of one step: in training forward, loss, backward and optimiser, in inference forward without gradients, in
decoding one more token of each sequence."""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import LEAKED_STEPS, PrecisionConfig, WorkloadConfig
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models.build import Batch, build, first_tensor, loss, make_batch, require_positions
from mfulab.models.decoding import decoder, prefiller
from mfulab.models.pruning import compress

StepFunction = Callable[[], torch.Tensor]
Phase = Literal["forward", "backward", "optimiser", "other"]
Teacher = Callable[[], torch.Tensor]
Mark = Callable[[Phase], object]
"""Called at the end of each phase, with its name."""

TEMPERATURE = 2.0  # that softens a teacher's classes
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
    if config.model.pruning == "two_of_four":
        compress(model)
    batch = make_batch(config.model, config.batch_size, config.sequence_length, device=device, dtype=dtype)
    require_positions(model, batch)
    return model, batch


def nothing(phase: Phase | None = None) -> None:
    """Ignores the mark of a phase; fetches no batch where one lies on the device."""


def teaching(
    model: torch.nn.Module, batch: Batch, workload: WorkloadConfig, precision: PrecisionConfig, device: torch.device
) -> Teacher:
    """Gives the logits of a teacher, frozen: computed anew each time, or kept from the first (`teacher=cached`)."""
    model.eval().requires_grad_(requires_grad=False)

    def taught() -> torch.Tensor:
        with torch.no_grad(), autocast(precision, device):
            return first_tensor(model(batch.inputs))

    if workload.teacher == "online":
        return taught
    kept = taught()
    return lambda: kept


def distillation_loss(output: Any, taught: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence from the teacher's softened classes, × T² (Hinton et al. 2015, arXiv:1503.02531)."""
    own, other = (each.flatten(0, -2) / TEMPERATURE for each in (first_tensor(output), taught))
    divergence = torch.nn.functional.kl_div(own.log_softmax(-1), other.softmax(-1), reduction="batchmean")
    return TEMPERATURE**2 * divergence


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
    teacher: Teacher | None = None,
) -> Callable[..., torch.Tensor]:
    """Forward, loss and backward for each micro-batch, then clipping, optimiser step and zero_grad; returns the loss.

    `capturable` keeps the optimiser's counters on the device, which a CUDA graph needs. Under fp16 autocast the loss is
    scaled, as mixed-precision training has it (Micikevicius et al. 2018, arXiv:1710.03740). The step takes a `Mark`,
    which hears of the end of each phase; `other` is fetching, a teacher, unscaling, clipping, the schedule, zero_grad.
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
            taught = teacher() if teacher else None
            mark("other")
            with autocast(precision, device):
                output = model(batch.inputs)
                value = loss(output, batch.targets, task)
                if taught is not None:
                    value = (value + distillation_loss(output, taught)) / 2
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
