"""Passes that run after a step's timed windows. Each declares the columns that it fills and when it
applies."""

import itertools
import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import write_csv
from mfulab.core.groups import ExecutionConfig, PrecisionConfig
from mfulab.core.said import Said, cell_of, of_source
from mfulab.device import allocator, synchronise
from mfulab.device.samplers.reading import Reading, Readings
from mfulab.flops.experts import RoutedTokens
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig
from mfulab.mfu.job import bus_factor
from mfulab.models import execution, frameworks, parallel
from mfulab.models import step as steps
from mfulab.models.build import first_tensor, make_batch
from mfulab.models.second_moments import zeros_percent
from mfulab.timing.instruments import Instruments
from mfulab.timing.pace import Pace
from mfulab.timing.phases import phase_readings
from mfulab.timing.windows import Observation, are_noticed, measure_window
from mfulab.tracing import operators
from mfulab.tracing.analysis import Analysis
from mfulab.tracing.modules import column_of

NO_SECOND_MOMENTS = Said("no_second_moments")
KEPT_MEMORY_S = 0.2  # length of the window in which the allocator keeps freed memory


@dataclass
class Run:
    """A step after its timed windows: inputs of the passes, and the row and readings that they
    fill."""

    config: ProfileStepConfig
    instruments: Instruments
    row: ProfileRow
    step: steps.Step
    pace: Pace
    observed: Observation
    readings: Readings = field(default_factory=dict)
    analysis: Analysis | None = None

    @property
    def device(self) -> torch.device:
        """Device of the step."""
        return self.instruments.device  # type: ignore[no-any-return]

    @property
    def is_parallel(self) -> bool:
        """True if several ranks train together."""
        return self.config.parallel.processes > 1

    @property
    def is_first(self) -> bool:
        """True for replicate 1, the only process that makes the passes needed once."""
        return self.config.replicate == 1

    @property
    def traced_steps(self) -> int:
        """Number of steps in a traced pass. All ranks compute the same number."""
        most_steps = 10 if self.instruments.on_gpu else 3
        fitting_steps = round(self.pace.traced_s / self.observed.agreed_s)
        return max(1, min(most_steps, fitting_steps))


class Pass(NamedTuple):
    """A function that works on the step after its windows, the columns that it fills, and a
    condition."""

    fill: Callable[[Run], None]
    fills: tuple[str, ...]
    applies: Callable[[Run], bool]


def fills(
    *columns: str, where: Callable[[Run], bool] = lambda run: True
) -> Callable[[Callable[[Run], None]], Pass]:
    """Decorator that makes a pass of a function. The pass fills `columns` and applies if
    `where(run)` is True, by default always."""
    return lambda fill: Pass(fill, columns, where)


def _is_traced(run: Run) -> bool:
    """True in the first process, if a trace is requested and torch's profiler sees the framework."""
    wanted = run.config.profile.operators or run.config.profile.trace
    return wanted and run.is_first and run.config.execution.mode not in frameworks.PACKAGES


def _is_sound(run: Run, mode: str) -> bool:
    """True in the first process, if the mode is `mode` and no pass has found the result
    incorrect."""
    return run.is_first and run.row.status == "ok" and run.config.workload.mode == mode


@fills("forward_ms", "backward_ms", "optimiser_ms", "other_ms", "phases_percent")
def phases(run: Run) -> None:
    """Times forward, backward and optimiser in marked steps."""
    clock = run.instruments.clock
    length_s = run.pace.window_s
    run.readings |= phase_readings(
        run.step.call, run.step.phases, clock, length_s, run.observed.agreed_s
    )


@fills("memory_bytes")
def memory(run: Run) -> None:
    """Reads peak memory, before tracing adds to it."""
    run.readings["memory_bytes"] = run.instruments.memory.read()


@fills("second_moment_zeros_percent", where=lambda run: run.config.workload.mode == "training")
def second_moments(run: Run) -> None:
    """Counts exact zeros in the optimiser's second moments, after the peak of memory was read."""
    optimizer = run.step.optimizer
    share = None if optimizer is None else zeros_percent(optimizer)
    run.readings["second_moment_zeros_percent"] = Reading(
        share, "%", "state of the optimiser", reason=NO_SECOND_MOMENTS
    )


@fills("sent_bytes", where=lambda run: run.is_parallel)
def traffic(run: Run) -> None:
    """Counts the bytes that a rank sends in a step."""
    run.readings["sent_bytes"] = parallel.sent_bytes(run.step.call, run.traced_steps)


@fills(*operators.READ, where=lambda run: not _is_traced(run))
def no_trace(run: Run) -> None:
    """Sets the reason why a run has no trace."""
    if run.config.execution.mode in frameworks.PACKAGES:
        reason = of_source(f"execution={run.config.execution.name}", Said("profiler_blind"))
        run.readings |= operators.untraced(reason)
    else:
        run.readings |= operators.untraced()


@fills(
    *operators.READ,
    *("uncounted_operators", "top_kernels", "top_other_operators", "spent", "modules"),
    *("executed_ratio", "issued_ratio", "misaligned"),
    where=_is_traced,
)
def trace(run: Run) -> None:
    """Traces some steps. Writes operators.csv, kernels.csv on a GPU, and trace.json.gz if
    requested."""
    with operators.module_ranges() if run.pace.is_traced_once else nullcontext():
        traced = operators.trace_steps(run.step.call, run.device, run.traced_steps)
    readings, run.analysis = operators.trace_readings(traced, run.device, run.observed.time_s)
    run.readings |= readings
    row = run.row
    profile = run.config.profile
    folder = run.instruments.folder
    if run.is_parallel and run.analysis is not None:
        _fill_bytes_of_collectives(run, run.analysis)
    row.uncounted_operators = operators.uncounted_operators(traced)
    if run.analysis is not None:
        row.top_kernels = run.analysis.top_kernels()
        row.top_other_operators = run.analysis.top_other_operators()
        row.spent = json.dumps(run.analysis.spent)
        row.misaligned = run.analysis.misaligned()
        row.executed_ratio, row.issued_ratio = run.analysis.ratios().values()
    if profile.operators and run.config.execution.mode == "eager" and not run.is_parallel:
        trace_with_modules = traced
        if not run.pace.is_traced_once:
            trace_with_modules = operators.trace_modules(run.step.call, run.device, 1)
        row.modules = column_of(operators.modules_of(trace_with_modules))
    if profile.operators:
        write_csv(
            folder / "operators.csv", operators.operator_table(traced), operators.OPERATOR_COLUMNS
        )
        if run.analysis is not None and run.analysis.kernels:
            write_csv(folder / "kernels.csv", run.analysis.kernels, operators.KERNEL_COLUMNS)
    if profile.trace:
        traced.export(folder / "trace.json.gz")


def _fill_bytes_of_collectives(run: Run, analysis: Analysis) -> None:
    """Bytes that a rank sends by NCCL, whose traffic passes no counted interface: of each
    collective in the trace, by the factors of NCCL's tests."""
    transfers = analysis.begun_transfers()
    if run.readings["sent_bytes"].value is not None or not transfers:
        return
    sent = 0.0
    for transfer in transfers:
        collective = transfer.collective
        sent += collective.bytes * bus_factor(collective.kind, collective.processes)
    steps = run.traced_steps
    source = f"sizes of the collectives in the trace, {steps} steps"
    run.readings["sent_bytes"] = Reading(sent / steps, "B", source)


@fills("loss", "unread_parameters", "expert_imbalance", "status", "message")
def loss(run: Run) -> None:
    """Runs one more step and checks that its loss is finite. For inference in eager mode, also
    reads how tokens were routed to experts."""
    row = run.row
    config = run.config
    shows_experts = config.workload.mode != "training" and config.execution.mode == "eager"
    with RoutedTokens() if shows_experts else nullcontext() as routed:
        row.loss = run.step.loss(run.step.call())
    if routed is not None:
        row.unread_parameters = routed.unread_parameters
        row.expert_imbalance = routed.imbalance
    if not math.isfinite(row.loss):
        row.status = "incorrect"
        row.loss = None
        row.message = cell_of(
            Said("loss_not_finite", steps=run.observed.steps, precision=config.precision.name)
        )


@fills(
    *("default_state_page_faults", "default_state_time_s", "page_fault_s", "kept_memory_time_s"),
    where=lambda run: not run.instruments.on_gpu,  # a GPU's allocator keeps freed memory
)
def allocator_states(run: Run) -> None:
    """Times the step in other states of the allocator, and one page fault, if faults take 1 % of a
    step or more."""
    row = run.row
    warm_up = run.observed.warm_up
    time_s = run.observed.time_s
    row.default_state_page_faults = warm_up.unsettled_faults
    if are_noticed(warm_up.unsettled_faults, warm_up.unsettled_s):
        row.default_state_time_s = warm_up.unsettled_s
    faults = run.readings.get("page_faults_per_s")
    if faults is None or not are_noticed((faults.value or 0) * time_s, time_s):
        return
    row.page_fault_s = allocator.page_fault_s()
    if run.is_parallel or not run.is_first:  # ranks would have to agree on the steps
        return
    with allocator.kept_memory() as is_kept:
        if is_kept:
            run.step.call()
            run.step.call()
            window = measure_window(run.step.call, run.instruments.clock, KEPT_MEMORY_S, time_s)
            row.kept_memory_time_s = window.median_s


@fills(
    *("varied_calls", "varied_s", "graphs", "recompilations", "graph_breaks"),
    where=lambda run: bool(run.config.profile.varied_batches) and _is_sound(run, "inference"),
)
def recompilations(run: Run) -> None:
    """Calls the model with batch_size, batch_size + 1, … samples, and counts graphs, recompilations
    and graph breaks of torch.compile."""
    from torch._dynamo import explain
    from torch._dynamo.utils import counters

    row = run.row
    config = run.config
    device = run.device
    torch.manual_seed(config.seed)
    model, batch, _ = steps.prepare_model(config, device)
    compiles = config.execution.mode == "compile"
    call = execution.issue(model, batch, config.execution)
    count = config.profile.varied_batches
    dtype = batch.inputs.dtype
    length = config.sequence_length
    sizes = range(config.batch_size, config.batch_size + count)
    batches = [make_batch(config.model, size, length, device=device, dtype=dtype) for size in sizes]
    inputs = []
    for unarranged in batches:
        _, arranged = execution.arrange(model, unarranged, config.execution)
        inputs.append(arranged.inputs)
    with torch.no_grad(), steps.autocast(config.precision, device):
        if compiles:  # a graph break is a place at which torch.compile falls back to Python
            row.graph_breaks = explain(model)(inputs[0]).graph_break_count
        torch.compiler.reset()  # discards what was compiled while timing
        # number of compiled graphs before the calls, then after each call
        graph_counts = [counters["stats"]["unique_graphs"]]
        synchronise(device)
        began = time.perf_counter()
        for samples in inputs:
            call(samples)
            graph_counts.append(counters["stats"]["unique_graphs"])
    synchronise(device)
    row.varied_s = time.perf_counter() - began
    row.varied_calls = count
    if compiles:
        row.graphs = graph_counts[-1] - graph_counts[0]
        after_calls = itertools.pairwise(graph_counts[1:])
        row.recompilations = sum(before < after for before, after in after_calls)


@fills(
    *("losses", "exact_losses"),
    where=lambda run: bool(run.config.profile.losses) and _is_sound(run, "training"),
)
def losses(run: Run) -> None:
    """Trains again from the seed and records the first losses. If `profile.exact` is set, repeats
    this in float64 and eager mode."""
    config = run.config
    count = run.config.profile.losses

    def first_losses(config: ProfileStepConfig, prepared: steps.PreparedModel) -> str:
        step = steps.make(config, run.device, prepared)
        return json.dumps([step.loss(step.call()) for _ in range(count)])

    torch.manual_seed(config.seed)
    run.row.losses = first_losses(config, steps.prepare_model(config, run.device))
    if not config.profile.exact:
        return
    torch.manual_seed(config.seed)
    model, batch, facts = steps.prepare_model(config, run.device)
    in_float64 = {
        "precision": PrecisionConfig(name="fp64", dtype="float64"),
        "execution": ExecutionConfig(name="eager"),
    }
    exact_config = config.model_copy(update=in_float64)
    prepared = steps.PreparedModel(model.double(), batch.double(), facts)
    run.row.exact_losses = first_losses(exact_config, prepared)


@fills(
    *("relative_error", "status", "message", "time_s"),
    where=lambda run: run.config.profile.exact and _is_sound(run, "inference"),
)
def exact_output(run: Run) -> None:
    """Compares an inference's output with float64 of the same weights, or with the model's
    `exact(inputs)`. If the error is too large, the row is `incorrect` and has no time. Tolerance:
    that of a matmul with the longest sum among the layers, times the number of layers."""
    row = run.row
    config = run.config
    torch.manual_seed(config.seed)
    prepared = steps.prepare_model(config, run.device)
    output = first_tensor(steps.make(config, run.device, prepared).call())
    batch = prepared.batch  # a DataLoader's batch was fetched into it
    torch.manual_seed(config.seed)
    model, _ = steps.make_model(config, run.device)
    with torch.no_grad():
        own_exact = getattr(model, "exact", None)
        if callable(own_exact):
            exact = own_exact(batch.inputs)
        else:
            exact = first_tensor(model.eval().double()(batch.double().inputs))
    weights = [weight for weight in model.parameters() if weight.ndim > 1]
    longest_sum = max((weight[0].numel() for weight in weights), default=1)
    tolerance = max(1, len(weights)) * config.precision.form.tolerance(longest_sum)
    error_norm = torch.linalg.vector_norm(output.double() - exact)
    row.relative_error = float(error_norm / torch.linalg.vector_norm(exact))
    if not row.relative_error <= tolerance:  # written so that NaN counts as wrong
        row.status = "incorrect"
        row.time_s = None
        row.message = cell_of(Said("error_too_large", error=row.relative_error, accepted=tolerance))


PASSES = (
    phases,
    memory,
    second_moments,
    traffic,
    no_trace,
    trace,
    loss,
    allocator_states,
    recompilations,
    losses,
    exact_output,
)
"""All passes in order. Memory is read before tracing; passes that build a new model come last."""


def require(config: ProfileStepConfig) -> None:
    """Raises UnsupportedError, before anything is timed, if a requested pass does not work with
    this execution."""
    if config.profile.varied_batches and config.execution.mode not in ("eager", "compile"):
        raise UnsupportedError(Said("varied_needs_eager", execution=config.execution.name))
    if config.profile.losses and config.execution.mode == "cuda_graph":
        raise UnsupportedError(Said("graph_hides_losses"))
