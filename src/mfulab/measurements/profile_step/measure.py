"""Measures one step of training, inference or decoding: its time over steady windows, and how busy the device was."""

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import write_csv
from mfulab.core.groups import ProfileConfig, TimingConfig, WorkloadConfig
from mfulab.core.measurement import Measured
from mfulab.device import allocator
from mfulab.device.compute import allow_tf32, effective_precision, is_first_rank, prepare
from mfulab.device.cpu import usable_cores
from mfulab.device.samplers.memory import PeakMemory
from mfulab.device.samplers.reading import Reading, Readings, missing
from mfulab.device.samplers.selection import clock_reader, restriction_of, samplers_for, set_readings
from mfulab.device.samplers.series import Series
from mfulab.flops.experts import RoutedTokens
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig, beside, ranks
from mfulab.models import execution, frameworks, parallel, workload
from mfulab.models.build import Batch, enable_checkpointing, loss
from mfulab.models.feeding import feeder
from mfulab.models.quantised import quantise, weight_bytes
from mfulab.timing.clocks import HostClock, clock_for
from mfulab.timing.pace import CPU_PACE, CUDA_PACE, Pace
from mfulab.timing.phases import measure_phases
from mfulab.timing.probe import Probe, known_best, packed
from mfulab.timing.statistics import Stats
from mfulab.timing.windows import Observation, are_noticed, measure_window, observe
from mfulab.tracing.analysis import Analysis
from mfulab.tracing.operators import (
    KERNEL_COLUMNS,
    OPERATOR_COLUMNS,
    TracedPass,
    operator_table,
    trace_readings,
    trace_steps,
    uncounted_operators,
    untraced,
)

TRACED_S = 0.3
KEPT_S = 0.2  # of the window in which memory is kept
GENERATING = ("prefill", "decoding")  # modes that give the next token alone


def measure(config: ProfileStepConfig, folder: Path) -> Measured:
    """One row for one model, workload, batch size, precision and execution mode.

    Leaves in `folder`: series.csv, operators.csv, on a GPU kernels.csv, and where asked for trace.json.gz.
    """
    if config.parallel.processes > 1:
        return ranks.measure(config, folder, measure_process)
    return measure_process(config, folder)[0]


def measure_process(config: ProfileStepConfig, folder: Path) -> tuple[Measured, Analysis | None]:
    """Measures the step in this process, which may be one of several; also gives what its trace told."""
    compiled = config.execution.mode == "compile" and config.replicate == 1  # the process whose `compile_s` counts
    with execution.empty_cache() if compiled else nullcontext():
        return _measure(config, folder)


def _measure(config: ProfileStepConfig, folder: Path) -> tuple[Measured, Analysis | None]:
    device, _ = prepare(config.device, settled=False)
    effective = effective_precision(config.precision, device)
    if config.precision.tf32 and effective != "tf32":
        raise UnsupportedError("TF32 needs an NVIDIA GPU of compute capability 8.0 or later")
    effective = "int8" if config.execution.multiplies_integers else effective
    allow_tf32(config.precision.tf32)
    frameworks.load(config.execution.mode)
    beside.require(config)
    torch.manual_seed(config.seed)
    probe = Probe(device, clock_reader(device))  # the memory that it holds is not the model's
    memory = PeakMemory(device)
    began = time.perf_counter()
    told: dict[str, float] = {}
    step, final_loss = make_step(config, device, told)
    made = time.perf_counter()
    if config.workload.mode == "decoding":
        memory.forget()  # filling the cache is not the step
    seen = _observe(config, step, device, folder, probe)
    row = _row(config, seen, "int8" if config.execution.quantisation.endswith("c_int8") else effective)
    row.weight_bytes, row.output_error = told.get("weight_bytes"), told.get("output_error")
    row.message = beyond_cores(config.workload) or row.message
    row.probe_s, row.probes = probe.spent_s, packed(seen.states, torch.get_num_threads())
    row.measured_s = time.perf_counter() - made
    if config.execution.mode not in ("eager", "tensorflow_eager"):
        row.compile_s = max(0.0, made - began + seen.warm_up.first_call_s - seen.time_s)
    step_s = parallel.agreed(seen.time_s)  # all processes of a job run the same steps
    readings = {**seen.readings, "memory_bytes": memory.read(), **_phases(config, step, step_s, device)}
    if config.parallel.processes > 1:
        readings["sent_bytes"] = parallel.sent_bytes(step, _traced_steps(device, step_s))
    if config.execution.mode in frameworks.PACKAGES:
        kernels, analysis = untraced(f"execution={config.execution.name}: torch's profiler does not see it"), None
    elif config.replicate == 1 and (config.profile.operators or config.profile.trace):
        traced = trace_steps(step, device, _traced_steps(device, step_s))
        kernels, analysis = trace_readings(traced, device)
        row.uncounted_operators = uncounted_operators(traced)
        if analysis is not None:
            row.top_kernels, row.top_other_operators = analysis.top_kernels(), analysis.top_other_operators()
            row.spent = json.dumps(analysis.spent)
        write_tables(config.profile, traced, analysis.kernels if analysis else [], folder)
    else:
        kernels, analysis = untraced(), None
    set_readings(row, {**readings, **kernels}, seen.steps)
    row.restriction = restriction_of(device) or None
    with RoutedTokens() if _shows_experts(config) else nullcontext() as routed:
        row.loss = final_loss()  # of one step more, where none is trained
    if routed is not None:
        row.unread_parameters, row.expert_imbalance = routed.unread_parameters, routed.imbalance
    if device.type == "cpu":
        _fill_allocator(row, config, seen, step)
    if not math.isfinite(row.loss):
        row.status, row.loss = "incorrect", None
        row.message = f"the loss is not finite after {seen.steps} steps in {config.precision.name}"
    elif config.replicate == 1:
        beside.fill(row, config, device, make_step)
    return Measured(row, _samples(seen, config.replicate)), analysis


def _fill_allocator(row: ProfileRow, config: ProfileStepConfig, seen: Observation, step: Callable[[], Any]) -> None:
    """The step in the allocator's other states, and what a page fault takes, where the step has enough of them."""
    row.default_state_page_faults = seen.warm_up.unsettled_faults
    if are_noticed(seen.warm_up.unsettled_faults, seen.warm_up.unsettled_s):
        row.default_state_time_s = seen.warm_up.unsettled_s
    if not are_noticed((row.page_faults_per_s or 0) * seen.time_s, seen.time_s):
        return
    row.page_fault_s = allocator.page_fault_s()
    if config.replicate == 1 and config.parallel.processes == 1:  # ranks would have to agree on the steps
        with allocator.kept_memory() as is_kept:
            if is_kept:
                step()
                step()
                row.kept_memory_time_s = measure_window(step, HostClock(), KEPT_S, seen.time_s).median_s


def beyond_cores(workload: WorkloadConfig) -> str | None:
    """Says of a DataLoader that it has more processes than there are cores; None of others."""
    if workload.input != "host" or workload.loader_workers <= usable_cores():
        return None
    return (
        f"workload.loader_workers={workload.loader_workers}: more than the {usable_cores()} cores that this run may"
        " use; they take time from the model"
    )


def _shows_experts(config: ProfileStepConfig) -> bool:
    return config.workload.mode != "training" and config.execution.mode == "eager"


def make_step(
    config: ProfileStepConfig, device: torch.device, told: dict[str, float] | None = None
) -> tuple[Callable[..., Any], Callable[[], float]]:
    """The step as a function, and a function that gives the loss: of the last training step, or of one output.

    Readings from making it, such as the error of a quantised model, are put into `told`.
    A training step that is no captured graph takes a `workload.Mark` for its phases.
    """
    model, batch = workload.make_model(config, device)
    model, batch = execution.arrange(model, batch, config.execution)
    task, mode = config.model.task, config.workload.mode
    if mode == "training" and config.workload.checkpointing:
        if config.execution.attention != "default":
            raise UnsupportedError("checkpointing: attention computed again takes torch's own backend; use the default")
        enable_checkpointing(model)
    model.train(mode == "training")
    if config.execution.quantisation != "none":
        model, facts = quantise(model, batch, config.execution, config.precision)
        (told if told is not None else {}).update(facts)
    if config.model.pruning == "two_of_four" and told is not None:  # packed: half of the values, and where they stood
        told["weight_bytes"] = weight_bytes(model)
    if config.execution.mode in frameworks.PACKAGES:
        return _with_loss(frameworks.make_step(model, batch, config, device), batch, config)
    if mode in GENERATING and config.execution.mode not in ("eager", "compile"):
        raise UnsupportedError(f"execution={config.execution.name}: a growing cache needs eager or compiled execution")
    model = parallel.wrap(model, config.parallel, device)
    issued = execution.issue(model, batch, config.execution)
    graph = config.execution.mode == "cuda_graph"
    fetch: Callable[[], None] = workload.nothing
    if config.workload.input == "host":
        if graph:
            raise UnsupportedError("workload.input=host: a replayed CUDA graph asks the host for nothing")
        fetch = feeder(batch, config.model, config.workload, config.sequence_length)
    if mode in GENERATING:
        step = workload.generating_step(mode, model, issued, batch, config.precision, device)
    elif mode == "inference":
        if graph and config.workload.autograd != "no_grad":
            raise UnsupportedError("workload.autograd: a replayed CUDA graph records nothing; use no_grad")
        step = workload.inference_step(issued, batch, config.precision, device, fetch, config.workload.autograd)
    else:
        parameters = list(model.parameters())
        fetch = parallel.slowed(fetch, config.parallel)
        teacher = None
        if config.workload.teacher != "none":
            frozen, _ = workload.make_model(config, device)
            teacher = workload.teaching(frozen, batch, config.workload, config.precision, device)
        asked = (config.workload, config.precision, device)
        step = workload.training_step(
            issued, parameters, batch, task, *asked, capturable=graph, fetch=fetch, teacher=teacher
        )
    if graph:
        step = execution.capture(step, device)
    return _with_loss(step, batch, config)


def _with_loss(
    step: Callable[..., Any], batch: Batch, config: ProfileStepConfig
) -> tuple[Callable[..., Any], Callable[[], float]]:
    mode = config.workload.mode
    if mode != "training":
        targets = batch.targets[:, -1:] if mode in GENERATING else batch.targets
        return step, lambda: float(loss(step(), targets, config.model.task))
    latest: list[torch.Tensor] = []

    def remembered(*mark: workload.Mark) -> torch.Tensor:
        latest[:] = [step(*mark)]
        return latest[0]

    return remembered, lambda: float(latest[0])


def pace_for(device: torch.device, timing: TimingConfig) -> Pace:
    """The device's pace with what the config sets in its place."""
    pace = CUDA_PACE if device.type == "cuda" else CPU_PACE
    return replace(
        pace,
        windows=timing.windows or pace.windows,
        window_s=timing.window_time_s or pace.window_s,
        warm_up_s=timing.warm_up_time_s or pace.warm_up_s,
        patience_s=pace.patience_s if timing.patience_s is None else timing.patience_s,
        precision=timing.relative_precision,
    )


def _row(config: ProfileStepConfig, seen: Observation, effective: str) -> ProfileRow:
    steps = Stats(seen.step_times_s)
    return ProfileRow(
        model=config.model.name,
        workload=config.workload.name,
        batch_size=config.batch_size,
        sequence_length=config.sequence_length,
        precision=config.precision.name,
        execution=config.execution.name,
        effective_precision=effective,
        time_s=seen.time_s,
        time_p5_s=steps.p5,
        time_p95_s=steps.p95,
        within_spread_percent=_within_spread(seen),
        windows=len(seen.windows),
        disturbed_windows=seen.disturbed,
        repeated_windows=len(seen.discarded),
        steps=seen.steps,
        window_s=seen.length_s,
        warm_up_s=seen.warm_up.total_s,
        first_call_s=seen.warm_up.first_call_s,
        steady=seen.warm_up.steady,
    )


def _within_spread(seen: Observation) -> float | None:
    medians = Stats(window.median_s for window in seen.windows)
    spread = medians.standard_deviation
    return None if spread is None else 100 * spread / medians.median


def _observe(
    config: ProfileStepConfig, step: Callable[[], Any], device: torch.device, folder: Path, probe: Probe
) -> Observation:
    series = Series(device, folder / "series.csv")
    is_kept = is_first_rank() or device.type == "cuda"  # on a CPU a poller fills the series alone, rank 0's
    try:
        samplers = samplers_for(device, [series.open()] if is_kept else [])
        pace = pace_for(device, config.timing)
        clock, frequency_mhz = clock_for(device), clock_reader(device)
        if config.parallel.processes > 1:  # further windows of one rank would wait for the others for ever
            pace = replace(pace, patience_s=0.0, precision=None)
            return observe(step, clock, pace, samplers, frequency_mhz, agree=parallel.agreed, settle=allocator.settle)
        return observe(step, clock, pace, samplers, frequency_mhz, probe, known_best(folder), settle=allocator.settle)
    except RuntimeError as error:
        if "not implemented for" in str(error):
            raise UnsupportedError(f"precision={config.precision.name} on {device.type}: {error}") from error
        raise
    finally:
        series.close()


def _phases(config: ProfileStepConfig, step: Callable[..., Any], step_s: float, device: torch.device) -> Readings:
    names = dict.fromkeys((f"{phase}_ms" for phase in get_args(workload.Phase)), "ms")
    if config.workload.mode != "training":
        return missing(names, "marked steps", "the step is one phase, forward")
    if config.execution.mode == "cuda_graph":
        return missing(names, "marked steps", "a CUDA graph is launched as a whole")
    if config.execution.mode in frameworks.PACKAGES:
        return missing(names, "marked steps", f"execution={config.execution.name}: the step is one call")
    found, quotient = measure_phases(step, clock_for(device), pace_for(device, config.timing).window_s, step_s)
    source = f"marked steps, {'CUDA events' if device.type == 'cuda' else 'host clock'}"
    readings = {name: Reading(1e3 * found[name.removesuffix("_ms")], "ms", source) for name in names}
    return {**readings, "phases_percent": Reading(100 * quotient, "%", f"{source}, each before one without marks")}


def _traced_steps(device: torch.device, step_s: float) -> int:
    return max(1, min(10 if device.type == "cuda" else 3, round(TRACED_S / step_s)))


def write_tables(profile: ProfileConfig, traced: TracedPass, kernels: list[dict[str, object]], folder: Path) -> None:
    """Leaves operators.csv, kernels.csv and trace.json.gz in `folder`, as `profile` asks."""
    if profile.operators:
        write_csv(folder / "operators.csv", operator_table(traced), OPERATOR_COLUMNS)
        if kernels:
            write_csv(folder / "kernels.csv", kernels, KERNEL_COLUMNS)
    if profile.trace:
        traced.export(folder / "trace.json.gz")


def _samples(seen: Observation, replicate: int) -> list[dict[str, object]]:
    return [
        {"replicate": replicate, "window": number, "sample": place, "time_s": seconds, "counted": counted}
        for counted, windows in ((True, seen.windows), (False, seen.discarded))
        for number, window in enumerate(windows)
        for place, seconds in enumerate(window.step_times_s)
    ]
