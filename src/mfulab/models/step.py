"""One step of a model, ready to be called: of training, inference or generating text, by torch or another framework."""

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mfulab.core.configs import ModelStepConfig
from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import LEAKED_STEPS, PrecisionConfig, WorkloadConfig
from mfulab.models import execution, frameworks, parallel
from mfulab.models.build import (
    Batch,
    Task,
    build,
    enable_checkpointing,
    first_tensor,
    loss,
    make_batch,
    require_positions,
)
from mfulab.models.decoding import generating
from mfulab.models.feeding import beyond_cores, feeder
from mfulab.models.pruning import compress
from mfulab.models.quantised import quantise, weight_bytes
from mfulab.timing.phases import Mark, Phase

TEMPERATURE = 2.0  # that softens a teacher's classes
ONE_PHASE = "the step is one phase, forward"
SCHEDULE_STEPS = 1000  # of a cosine's half; which part of it is measured does not change what a step costs


@dataclass(frozen=True)
class Step:
    """One step of a model."""

    call: Callable[[], Any]  # does the step; of training it returns the loss, else the model's output
    loss: Callable[[Any], float]  # gives the loss of what `call` returned
    phases: Callable[[Mark], object] | str  # does the step, calls a `Mark` after each phase; the reason, if it has none
    facts: dict[str, Any] = field(default_factory=dict)  # columns known by then, such as a quantised model's error


def make(config: ModelStepConfig, device: torch.device) -> Step:
    """Makes the step of `config` on `device`, for one seed of the same weights and batch; ModelError or
    UnsupportedError."""
    trains = config.workload.mode == "training"
    if config.execution.mode in frameworks.PACKAGES:
        model, batch, facts = _prepared(config, device)
        call = frameworks.make_step(model, batch, config, device)
        if trains:
            return Step(call, float, f"execution={config.execution.name}: the step is one call", facts)
        return Step(call, lambda output: float(loss(output, batch.targets, config.model.task)), ONE_PHASE, facts)
    step = (_training if trains else _without_training)(config, device)
    if config.execution.mode == "cuda_graph":
        phases = step.phases if isinstance(step.phases, str) else "a CUDA graph is launched as a whole"
        return replace(step, call=execution.capture(step.call, device), phases=phases)
    return step


def make_model(config: ModelStepConfig, device: torch.device) -> tuple[torch.nn.Module, Batch]:
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


def parameter_dtype(precision: PrecisionConfig) -> torch.dtype:
    """The dtype of parameters and float inputs; float32 under autocast."""
    if precision.dtype in ("float8_e4m3fn", "int8"):
        raise UnsupportedError(f"precision={precision.name}: models run in floats of 16 bits or more; use a matmul")
    return torch.float32 if precision.autocast else getattr(torch, precision.dtype)


def nothing(phase: Phase | None = None) -> None:
    """Ignores the mark of a phase; fetches no batch where one lies on the device."""


def autocast(precision: PrecisionConfig, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context in which forward and loss run: torch.autocast where the precision asks for it."""
    if not precision.autocast:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision.dtype))


def _prepared(config: ModelStepConfig, device: torch.device) -> tuple[torch.nn.Module, Batch, dict[str, Any]]:
    model, batch = execution.arrange(*make_model(config, device), config.execution)
    workload, facts = config.workload, beyond_cores(config.workload)
    trains = workload.mode == "training"
    if trains and workload.checkpointing:
        if config.execution.attention != "default":
            raise UnsupportedError("checkpointing: attention computed again takes torch's own backend; use the default")
        enable_checkpointing(model)
    model.train(trains)
    if config.execution.quantisation != "none":
        model, measured = quantise(model, batch, config.execution, config.precision)
        facts |= measured
    elif config.model.pruning == "two_of_four":  # packed: half of the values, and where they stood
        facts["weight_bytes"] = weight_bytes(model)
    return model, batch, facts


def _fetching(config: ModelStepConfig, batch: Batch) -> Callable[[], None]:
    if config.workload.input != "host":
        return nothing
    if config.execution.mode == "cuda_graph":
        raise UnsupportedError("workload.input=host: a replayed CUDA graph asks the host for nothing")
    return feeder(batch, config.model, config.workload, config.sequence_length)


def _without_training(config: ModelStepConfig, device: torch.device) -> Step:
    """A forward pass of a batch, of a prompt, or of its last token; `leaked` keeps outputs of `LEAKED_STEPS` steps."""
    workload, issued = config.workload, config.execution
    model, batch, facts = _prepared(config, device)
    if workload.mode == "inference":
        if issued.mode == "cuda_graph" and workload.autograd != "no_grad":
            raise UnsupportedError("workload.autograd: a replayed CUDA graph records nothing; use no_grad")
        call, fetch, targets = execution.issue(model, batch, issued), _fetching(config, batch), batch.targets

        def compute() -> Any:
            fetch()
            return call(batch.inputs)
    else:
        if issued.mode not in ("eager", "compile"):
            raise UnsupportedError(f"execution={issued.name}: a growing cache needs eager or compiled execution")
        with torch.no_grad(), autocast(config.precision, device):
            compute = generating(workload.mode, model, batch.inputs, execution.issue(model, batch, issued))
        targets = batch.targets[:, -1:]
    contexts = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    record = contexts.get(workload.autograd, contextlib.nullcontext)
    kept: deque[Any] = deque(maxlen=LEAKED_STEPS if workload.autograd == "leaked" else 0)

    def step() -> Any:
        with record(), autocast(config.precision, device):
            output = compute()
        kept.append(output)
        return output

    return Step(step, lambda output: float(loss(output, targets, config.model.task)), ONE_PHASE, facts)


def _training(config: ModelStepConfig, device: torch.device) -> Step:
    model, batch, facts = _prepared(config, device)
    model = parallel.wrap(model, config.parallel, device)
    call = execution.issue(model, batch, config.execution)
    fetch = parallel.slowed(_fetching(config, batch), config.parallel)
    teacher = None
    if config.workload.teacher != "none":
        frozen, _ = make_model(config, device)
        teacher = teaching(frozen, batch, config.workload, config.precision, device)
    step = training_step(config, call, list(model.parameters()), batch, device, fetch=fetch, teacher=teacher)
    return Step(step, float, step, facts)


def training_step(
    config: ModelStepConfig,
    model: Callable[[Any], Any],
    parameters: list[torch.nn.Parameter],
    batch: Batch,
    device: torch.device,
    fetch: Callable[[], None] = nothing,
    teacher: Callable[[], torch.Tensor] | None = None,
) -> Callable[..., torch.Tensor]:
    """Forward, loss and backward for each micro-batch, then clipping, optimiser step and zero_grad; returns the loss.
    For a CUDA graph the optimiser's counters stay on the device. Under fp16 autocast the loss is scaled (Micikevicius
    et al. 2018, arXiv:1710.03740). The step takes a `Mark`; `other` is fetching, a teacher, unscaling, clipping, the
    schedule, zero_grad."""
    workload, precision = config.workload, config.precision
    capturable = config.execution.mode == "cuda_graph"
    optimizer = _optimizer(parameters, workload, capturable)
    schedule, scaler = _schedule(optimizer, workload, capturable), _scaler(precision, device, capturable)

    def step(mark: Mark = nothing) -> torch.Tensor:
        for _ in range(workload.gradient_accumulation):
            fetch()
            taught = teacher() if teacher else None
            mark("other")
            with autocast(precision, device):
                value = _loss(model(batch.inputs), batch, config.model.task, taught)
            mark("forward")
            share = value if workload.gradient_accumulation == 1 else value / workload.gradient_accumulation
            scaler.scale(share).backward()
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


def _loss(output: Any, batch: Batch, task: Task, taught: torch.Tensor | None) -> torch.Tensor:
    value = loss(output, batch.targets, task)
    return value if taught is None else (value + distillation_loss(output, taught)) / 2


def _schedule(optimizer: torch.optim.Optimizer, workload: WorkloadConfig, capturable: bool) -> Callable[[], None]:
    if workload.learning_rate_schedule == "constant":
        return nothing
    if capturable:
        raise UnsupportedError("execution=cuda_graph: a captured step keeps its learning rate; use a constant one")
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SCHEDULE_STEPS).step


def _scaler(precision: PrecisionConfig, device: torch.device, capturable: bool) -> torch.amp.GradScaler:
    """Scales the loss under fp16 autocast, and does nothing else."""
    scales = precision.autocast and precision.dtype == "float16"
    if scales and capturable:
        raise UnsupportedError("execution=cuda_graph: fp16 loss scaling reads from the device in each step; use bf16")
    return torch.amp.GradScaler(device.type, enabled=scales)


def teaching(
    model: torch.nn.Module, batch: Batch, workload: WorkloadConfig, precision: PrecisionConfig, device: torch.device
) -> Callable[[], torch.Tensor]:
    """Gives the logits of a teacher, frozen: computed anew each time, or kept from the first (`teacher=cached`)."""
    model.eval().requires_grad_(requires_grad=False)

    def taught() -> torch.Tensor:
        with torch.no_grad(), autocast(precision, device):
            return first_tensor(model(batch.inputs))

    if workload.teacher == "online":
        return taught
    kept = taught()
    return lambda: kept


def distillation_loss(output: Any, taught: torch.Tensor, temperature: float = TEMPERATURE) -> torch.Tensor:
    """Kullback-Leibler divergence from the teacher's softened classes, × T² (Hinton et al. 2015, arXiv:1503.02531)."""
    own, other = (logits.flatten(0, -2) / temperature for logits in (first_tensor(output), taught))
    divergence = torch.nn.functional.kl_div(own.log_softmax(-1), other.softmax(-1), reduction="batchmean")
    return temperature**2 * divergence


def _optimizer(
    parameters: list[torch.nn.Parameter], workload: WorkloadConfig, capturable: bool
) -> torch.optim.Optimizer:
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[workload.optimizer]
    options: dict[str, Any] = {} if workload.optimizer == "sgd" else {"capturable": capturable}
    if workload.optimizer_implementation != "default":  # torch's own choice: a loop on a CPU, foreach on a GPU
        options |= {name: workload.optimizer_implementation == name for name in ("foreach", "fused")}
    try:
        return kind(parameters, lr=workload.learning_rate, **options)
    except RuntimeError as error:
        asked = f"workload.optimizer_implementation={workload.optimizer_implementation}"
        raise UnsupportedError(f"{asked}: {error}") from error
