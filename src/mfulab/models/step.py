"""One step of a model, ready to be called: training, inference or generating text, by torch or
another framework."""

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from mfulab.core.configs import ModelStepConfig
from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import LEAKED_STEPS, PrecisionConfig
from mfulab.core.said import Said, of_source
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
from mfulab.timing.phases import Mark

TEMPERATURE = 2.0  # softens the teacher's class probabilities
ONE_PHASE = Said("one_phase")
# length of the cosine schedule; a step costs the same in all of its parts
SCHEDULE_STEPS = 1000
GROWING_CACHE_MODES = ("eager", "compile")  # modes of execution that allow a growing cache


@dataclass(frozen=True)
class Step:
    """One step of a model, how to get its loss, and how to time its phases."""

    call: Callable[[], Any]  # runs the step; returns the loss in training, else the model's output
    loss: Callable[[Any], float]  # computes the loss from the result of `call`
    # runs the step and calls a `Mark` after each phase; or the reason why it cannot
    phases: Callable[[Mark], object] | Said
    optimizer: torch.optim.Optimizer | None = None  # torch's, if the step trains with one


class PreparedModel(NamedTuple):
    """A model and its batch on their device, as configured, and the columns that are already
    known."""

    model: torch.nn.Module
    batch: Batch
    facts: dict[str, Any]


def make(
    config: ModelStepConfig, device: torch.device, prepared: PreparedModel | None = None
) -> Step:
    """Makes the step of `config` on `device`, from a `prepared` model or one that it prepares
    itself. Raises ModelError or UnsupportedError if that is not possible."""
    prepared = prepared or prepare_model(config, device)
    trains = config.workload.mode == "training"
    if config.execution.cache == "static" and config.workload.mode != "decoding":
        raise UnsupportedError(Said("static_cache_decodes", mode=config.workload.mode))
    targets = prepared.batch.targets
    task = config.model.task
    optimizer = None
    if config.execution.mode in frameworks.PACKAGES:
        call = frameworks.make_step(prepared.model, prepared.batch, config, device)
        phases: Any = ONE_PHASE
        if trains:
            phases = of_source(f"execution={config.execution.name}", Said("one_call"))
    elif trains:
        call, optimizer = _training(config, device, prepared)
        phases = call
    elif config.workload.mode == "inference":
        call = _inference(config, prepared)
        phases = ONE_PHASE
    else:
        call = _generation(config, prepared)
        phases = ONE_PHASE
        targets = targets[:, -1:]
    if config.execution.mode == "cuda_graph":
        call = execution.capture(call, device)
        phases = Said("graph_as_a_whole") if trains else phases
    if trains:
        return Step(call, float, phases, optimizer)
    return Step(call, lambda output: float(loss(output, targets, task)), phases)


def prepare_model(config: ModelStepConfig, device: torch.device) -> PreparedModel:
    """Builds the model and its batch from torch's seed; quantised, or with blocks that recompute,
    if configured."""
    model, batch = make_model(config, device)
    workload = config.workload
    facts = beyond_cores(workload)
    trains = workload.mode == "training"
    if trains and workload.checkpointing:
        if config.execution.attention != "default":
            raise UnsupportedError(Said("own_attention_backend"))
        enable_checkpointing(model)
    model.train(trains)
    if config.execution.quantisation != "none":
        model, quantised_facts = quantise(model, batch, config.execution, config.precision)
        facts |= quantised_facts
    elif config.model.pruning == "two_of_four":  # packed: half of the values, and their positions
        facts["weight_bytes"] = weight_bytes(model)
    return PreparedModel(model, batch, facts)


def make_model(config: ModelStepConfig, device: torch.device) -> tuple[torch.nn.Module, Batch]:
    """Makes the model and its batch in the configured precision and layout. The same seed of torch
    gives the same ones."""
    dtype = parameter_dtype(config.precision)
    with device:
        model = build(config.model)
    model = model.to(device=device, dtype=dtype)
    if config.model.pruning == "two_of_four":
        compress(model)
    batch = make_batch(
        config.model, config.batch_size, config.sequence_length, device=device, dtype=dtype
    )
    require_positions(model, batch)
    return execution.arrange(model, batch, config.execution)


def parameter_dtype(precision: PrecisionConfig) -> torch.dtype:
    """The dtype of parameters and float inputs: float32 under autocast. Raises UnsupportedError for
    8-bit formats."""
    if precision.dtype in ("float8_e4m3fn", "int8"):
        raise UnsupportedError(Said("models_in_16_bits", precision=precision.name))
    if precision.autocast:
        return torch.float32
    return getattr(torch, precision.dtype)


def nothing(_: object = None) -> None:
    """Does nothing. It stands for marking a phase, fetching a batch, and sending gradients if none
    of these is needed."""


def autocast(
    precision: PrecisionConfig, device: torch.device
) -> contextlib.AbstractContextManager[Any]:
    """Context for forward and loss: torch.autocast if the precision uses it, else an empty one."""
    if not precision.autocast:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision.dtype))


def _fetching(config: ModelStepConfig, batch: Batch) -> Callable[[], None]:
    """Returns a function that fetches the next batch from the host; it does nothing if batches stay
    on the device."""
    if config.workload.input != "host":
        return nothing
    if config.execution.mode == "cuda_graph":
        raise UnsupportedError(Said("graph_asks_no_host"))
    return feeder(batch, config.model, config.workload, config.sequence_length)


def _inference(config: ModelStepConfig, prepared: PreparedModel) -> Callable[[], Any]:
    """Returns a forward pass of a batch. With autograd `leaked`, outputs of the last `LEAKED_STEPS`
    steps are kept."""
    model, batch, _ = prepared
    autograd = config.workload.autograd
    if config.execution.mode == "cuda_graph" and autograd != "no_grad":
        raise UnsupportedError(Said("graph_records_nothing"))
    call = execution.issue(model, batch, config.execution)
    fetch = _fetching(config, batch)
    contexts = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    context = contexts.get(autograd, contextlib.nullcontext)
    leaked_outputs: deque[Any] = deque(maxlen=LEAKED_STEPS if autograd == "leaked" else 0)

    def step() -> Any:
        with context(), autocast(config.precision, batch.inputs.device):
            fetch()
            output = call(batch.inputs)
        leaked_outputs.append(output)
        return output

    return step


def _generation(config: ModelStepConfig, prepared: PreparedModel) -> Callable[[], Any]:
    """Returns a forward pass of a prompt, or of its last token with earlier ones in a cache."""
    model, batch, _ = prepared
    is_static = config.execution.cache == "static"
    is_graph = config.execution.mode == "cuda_graph"
    if config.execution.mode not in GROWING_CACHE_MODES and not (is_static and is_graph):
        raise UnsupportedError(Said("cache_needs_eager", execution=config.execution.name))
    call = execution.issue(model, batch, config.execution)
    with torch.no_grad(), autocast(config.precision, batch.inputs.device):
        if is_static:
            from mfulab.models import static_cache  # imports transformers

            generate = static_cache.decoding(model, batch.inputs, call)
        else:
            generate = generating(config.workload.mode, model, batch.inputs, call)

    def step() -> Any:
        with torch.no_grad(), autocast(config.precision, batch.inputs.device):
            return generate()

    return step


def _training(
    config: ModelStepConfig, device: torch.device, prepared: PreparedModel
) -> tuple[Callable[..., torch.Tensor], torch.optim.Optimizer]:
    """Makes the training step in the configured mode, wrapped for several processes, and with a
    teacher if configured. Also returns its optimiser."""
    model = parallel.wrap(prepared.model, config.parallel, device)
    batch = prepared.batch
    call = execution.issue(model, batch, config.execution)
    fetch = parallel.slowed(_fetching(config, batch), config.parallel)
    teacher = None
    if config.workload.teacher != "none":
        teacher_model, _ = make_model(config, device)
        teacher = teaching(teacher_model, batch, config)
    sends = parallel.sends(model, config.parallel)
    optimizer = make_optimizer(list(model.parameters()), config)
    return training_step(config, call, optimizer, batch, fetch, sends, teacher), optimizer


def training_step(
    config: ModelStepConfig,
    model: Callable[[Any], Any],
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    fetch: Callable[[], object] = nothing,
    sends: Callable[[bool], object] = nothing,
    teacher: Callable[[], torch.Tensor] | None = None,
) -> Callable[..., torch.Tensor]:
    """Returns a step: forward, loss and backward for each micro-batch, then clipping, update and
    zero_grad. `sends` is called with whether the micro-batch is the last. The step returns the
    loss. Under fp16 autocast the loss is scaled for backward (Micikevicius et al. 2018,
    arXiv:1710.03740)."""
    workload = config.workload
    precision = config.precision
    micro_batches = workload.gradient_accumulation
    parameters = optimizer.param_groups[0]["params"]
    device = batch.inputs.device
    schedule = _schedule(optimizer, config)
    scaler = _scaler(config, device)

    def step(mark: Mark = nothing) -> torch.Tensor:
        for remaining in reversed(range(micro_batches)):
            fetch()
            sends(not remaining)
            teacher_logits = teacher() if teacher else None
            mark("other")
            with autocast(precision, device):
                # stays alive during backward, as in a usual training loop
                output = model(batch.inputs)
                value = _loss(output, batch, config.model.task, teacher_logits)
            mark("forward")
            scaler.scale(value if micro_batches == 1 else value / micro_batches).backward()
            mark("backward")
        scaler.unscale_(optimizer)
        if workload.gradient_clipping is not None:
            torch.nn.utils.clip_grad_norm_(parameters, workload.gradient_clipping)
        mark("other")
        scaler.step(optimizer)
        mark("optimiser")
        scaler.update()
        schedule()
        optimizer.zero_grad()
        mark("other")
        return value.detach()

    return step


def _loss(
    output: Any, batch: Batch, task: Task, teacher_logits: torch.Tensor | None
) -> torch.Tensor:
    value = loss(output, batch.targets, task)
    if teacher_logits is None:
        return value
    return (value + distillation_loss(output, teacher_logits)) / 2


def _schedule(optimizer: torch.optim.Optimizer, config: ModelStepConfig) -> Callable[[], None]:
    """Returns a function that advances the learning rate after a step."""
    if config.workload.learning_rate_schedule == "constant":
        return nothing
    if config.execution.mode == "cuda_graph":
        raise UnsupportedError(Said("graph_keeps_rate"))
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SCHEDULE_STEPS).step


def _scaler(config: ModelStepConfig, device: torch.device) -> torch.amp.GradScaler:
    """Scales the loss under fp16 autocast; otherwise it does nothing."""
    scales = config.precision.autocast and config.precision.dtype == "float16"
    if scales and config.execution.mode == "cuda_graph":
        raise UnsupportedError(Said("graph_scaling_reads"))
    return torch.amp.GradScaler(device.type, enabled=scales)


def teaching(
    model: torch.nn.Module, batch: Batch, config: ModelStepConfig
) -> Callable[[], torch.Tensor]:
    """Returns a function for the logits of a frozen teacher, executed like its student: computed at
    each call, or once (`cached`)."""
    frozen = model.eval().requires_grad_(requires_grad=False)
    call = execution.issue(frozen, batch, config.execution)

    def teacher_logits() -> torch.Tensor:
        with torch.no_grad(), autocast(config.precision, batch.inputs.device):
            return first_tensor(call(batch.inputs))

    if config.workload.teacher == "online":
        return teacher_logits
    cached = teacher_logits()
    return lambda: cached


def distillation_loss(
    output: Any, teacher_logits: torch.Tensor, temperature: float = TEMPERATURE
) -> torch.Tensor:
    """Kullback-Leibler divergence from the teacher's softened class probabilities, × T² (Hinton et
    al. 2015, arXiv:1503.02531)."""
    softened = first_tensor(output).flatten(0, -2) / temperature
    softened_teacher = teacher_logits.flatten(0, -2) / temperature
    divergence = torch.nn.functional.kl_div(
        softened.log_softmax(-1), softened_teacher.softmax(-1), reduction="batchmean"
    )
    return temperature**2 * divergence


def make_optimizer(
    parameters: list[torch.nn.Parameter], config: ModelStepConfig
) -> torch.optim.Optimizer:
    """Makes the configured optimiser. Raises UnsupportedError if torch cannot."""
    workload = config.workload
    classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimizer_class = classes[workload.optimizer]
    options: dict[str, Any] = {}
    # capturable optimisers keep their step counters on the device, as a CUDA graph needs
    if workload.optimizer != "sgd":
        options["capturable"] = config.execution.mode == "cuda_graph"
    # torch's default is a loop on a CPU, and foreach on a GPU
    if workload.optimizer_implementation != "default":
        for name in ("foreach", "fused"):
            options[name] = workload.optimizer_implementation == name
    try:
        return optimizer_class(parameters, lr=workload.learning_rate, **options)
    except RuntimeError as error:
        setting = f"workload.optimizer_implementation={workload.optimizer_implementation}"
        raise UnsupportedError(of_source(setting, str(error))) from error
