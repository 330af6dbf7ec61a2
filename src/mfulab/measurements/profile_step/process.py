"""Measures one step in this process: its time over steady windows, and how busy the device was."""

import json
import math
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import write_csv
from mfulab.core.measurement import Measured
from mfulab.device import allocator, identity, is_gpu
from mfulab.device.compute import agreed, allow_tf32, effective_precision, is_first_rank, prepare
from mfulab.device.gpu import clock_reader, restriction_of
from mfulab.device.samplers.memory import PeakMemory
from mfulab.device.samplers.network import sent_bytes
from mfulab.device.samplers.selection import samplers_for, set_readings
from mfulab.device.samplers.series import Series
from mfulab.flops.experts import RoutedTokens
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig, extra_passes
from mfulab.models import execution, frameworks
from mfulab.models.step import make
from mfulab.timing.clocks import clock_for
from mfulab.timing.pace import pace_for
from mfulab.timing.phases import phase_readings
from mfulab.timing.probe import UNKNOWN, Probe, known_best, packed
from mfulab.timing.statistics import Stats
from mfulab.timing.windows import are_noticed, measure_window, observe
from mfulab.tracing import operators
from mfulab.tracing.analysis import Analysis
from mfulab.tracing.modules import column_of

TRACED_S = 0.3
KEPT_S = 0.2  # of the window in which memory is kept


def measure_step(config: ProfileStepConfig, folder: Path) -> tuple[Measured, Analysis | None]:
    """Measures the step in this process, which may be one of several; also gives what its trace shows."""
    compiled = config.execution.mode == "compile" and config.replicate == 1  # the process whose `compile_s` counts
    try:
        with execution.empty_cache() if compiled else nullcontext():
            return _measure(config, folder)
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        device = identity.resolve(config.device.type)
        raise UnsupportedError(f"precision={config.precision.name} on {device}: {error}") from error


def _measure(config: ProfileStepConfig, folder: Path) -> tuple[Measured, Analysis | None]:
    extra_passes.require(config)
    frameworks.load(config.execution.mode)
    device, _ = prepare(config.device, settled=False)
    effective = effective_precision(config.precision, device)
    if config.precision.tf32 and effective != "tf32":
        raise UnsupportedError("TF32 needs an NVIDIA GPU of compute capability 8.0 or later")
    effective = "int8" if config.execution.multiplies_integers else effective
    allow_tf32(config.precision.tf32)
    torch.manual_seed(config.seed)
    on_gpu, several = is_gpu(device), config.parallel.processes > 1
    frequency_mhz = clock_reader(device)
    clock, pace = clock_for(device), pace_for(device.type, config.timing)
    probe = Probe(device, frequency_mhz)  # the memory that it holds is not the model's
    memory = PeakMemory(device)
    began = time.perf_counter()
    step = make(config, device)
    made = time.perf_counter()
    if config.workload.mode == "decoding":
        memory.forget()  # filling the cache is not the step
    if several:  # further windows of one rank would wait for the others for ever
        pace = replace(pace, patience_s=0.0, precision=None)
    with closing(Series(device, folder / "series.csv")) as series:
        is_polled = is_first_rank() or on_gpu  # on a CPU a poller fills the series alone, rank 0's
        samplers = samplers_for(device, [series.open()] if is_polled else [])
        watch, best = (None, UNKNOWN) if several else (probe, known_best(folder))
        seen = observe(step.call, clock, pace, samplers, frequency_mhz, watch, best, agreed, allocator.settle)
    steps = Stats(seen.step_times_s)
    row = ProfileRow.of(
        config,
        effective_precision="int8" if config.execution.quantisation.endswith("c_int8") else effective,
        # A GPU's clock falls as it warms up: its fastest window is one that it cannot hold.
        time_s=seen.time_s if on_gpu else seen.fastest_s,
        median_time_s=seen.time_s,
        time_p5_s=steps.percentile(5),
        time_p95_s=steps.percentile(95),
        within_spread_percent=seen.spread_percent,
        windows=len(seen.windows),
        disturbed_windows=seen.disturbed,
        repeated_windows=len(seen.discarded),
        steps=seen.steps,
        window_s=seen.length_s,
        warm_up_s=seen.warm_up.total_s,
        first_call_s=seen.warm_up.first_call_s,
        steady=seen.warm_up.steady,
        probe_s=probe.spent_s,
        probes=packed(seen.states, torch.get_num_threads()),
        measured_s=time.perf_counter() - made,
        **step.facts,
    )
    if config.execution.mode not in ("eager", "tensorflow_eager"):
        row.compile_s = max(0.0, made - began + seen.warm_up.first_call_s - seen.time_s)
    phases = phase_readings(step.call, step.phases, clock, pace.window_s, seen.agreed_s)
    readings = {**seen.readings, **phases, "memory_bytes": memory.read()}
    traced_steps = max(1, min(10 if on_gpu else 3, round(TRACED_S / seen.agreed_s)))
    if several:
        readings["sent_bytes"] = sent_bytes(step.call, traced_steps)
    kernels, analysis = operators.untraced(), None
    if config.execution.mode in frameworks.PACKAGES:
        kernels = operators.untraced(f"execution={config.execution.name}: torch's profiler does not see it")
    elif config.replicate == 1 and (config.profile.operators or config.profile.trace):
        traced = operators.trace_steps(step.call, device, traced_steps)
        kernels, analysis = operators.trace_readings(traced, device, seen.time_s)
        row.uncounted_operators = operators.uncounted_operators(traced)
        if analysis is not None:
            row.top_kernels, row.top_other_operators = analysis.top_kernels(), analysis.top_other_operators()
            row.spent = json.dumps(analysis.spent)
            row.executed_ratio, row.issued_ratio = analysis.ratios().values()
            row.misaligned = analysis.misaligned()
        if config.profile.operators and config.execution.mode == "eager" and not several:
            row.modules = column_of(operators.modules_of(step.call, device, 1))
        if config.profile.operators:
            write_csv(folder / "operators.csv", operators.operator_table(traced), operators.OPERATOR_COLUMNS)
            if analysis is not None and analysis.kernels:
                write_csv(folder / "kernels.csv", analysis.kernels, operators.KERNEL_COLUMNS)
        if config.profile.trace:
            traced.export(folder / "trace.json.gz")
    set_readings(row, {**readings, **kernels}, seen.steps)
    row.restriction = restriction_of(device) or None
    shows_experts = config.workload.mode != "training" and config.execution.mode == "eager"
    with RoutedTokens() if shows_experts else nullcontext() as routed:
        row.loss = step.loss(step.call())
    if routed is not None:
        row.unread_parameters, row.expert_imbalance = routed.unread_parameters, routed.imbalance
    if not on_gpu:  # the allocator's other states, and what a page fault takes, where the step has enough of them
        row.default_state_page_faults = seen.warm_up.unsettled_faults
        if are_noticed(seen.warm_up.unsettled_faults, seen.warm_up.unsettled_s):
            row.default_state_time_s = seen.warm_up.unsettled_s
        if are_noticed((row.page_faults_per_s or 0) * seen.time_s, seen.time_s):
            row.page_fault_s = allocator.page_fault_s()
            if config.replicate == 1 and not several:  # ranks would have to agree on the steps
                with allocator.kept_memory() as is_kept:
                    if is_kept:
                        step.call()
                        step.call()
                        row.kept_memory_time_s = measure_window(step.call, clock, KEPT_S, seen.time_s).median_s
    if not math.isfinite(row.loss):
        row.status, row.loss = "incorrect", None
        row.message = f"the loss is not finite after {seen.steps} steps in {config.precision.name}"
    elif config.replicate == 1:
        extra_passes.fill(row, config, device)
    samples: list[dict[str, object]] = [
        {"replicate": config.replicate, "window": number, "sample": place, "time_s": seconds, "counted": counted}
        for counted, windows in ((True, seen.windows), (False, seen.discarded))
        for number, window in enumerate(windows)
        for place, seconds in enumerate(window.step_times_s)
    ]
    return Measured(row, samples), analysis
