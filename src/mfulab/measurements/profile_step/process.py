"""Measures one step of training, inference or generating text: warms up, times windows, then makes every pass."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.device import allocator, identity
from mfulab.device.compute import agreed, is_first_rank, prepare, require_float64, use_precision
from mfulab.device.gpu import restriction_of
from mfulab.device.samplers.selection import set_readings
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig
from mfulab.measurements.profile_step.passes import PASSES, Run, require
from mfulab.models import execution, frameworks
from mfulab.models.step import Step, make
from mfulab.timing.instruments import Instruments
from mfulab.timing.pace import Pace, pace_for
from mfulab.timing.probe import UNKNOWN, packed
from mfulab.timing.statistics import Stats
from mfulab.timing.windows import Observation, observe
from mfulab.tracing.analysis import Analysis


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
    device, effective, pace = _prepare(config)
    with Instruments(device, folder) as instruments:
        _ = instruments.probe, instruments.memory  # whose memory is not the model's
        began = time.perf_counter()
        step = make(config, device)
        ready = time.perf_counter()
        instruments.memory.forget()  # building in fp32, and filling a cache, are not the step
        seen = _observe(config, step, pace, instruments)
    samples, row = _samples(config, seen), _row(config, effective, step, ready - began, seen, instruments)
    row.measured_s = time.perf_counter() - ready
    run = Run(config, instruments, row, step, pace, seen, dict(seen.readings))
    for each_pass in PASSES:
        if each_pass.applies(run):
            each_pass.fill(run)
    set_readings(row, run.readings, seen.steps)
    return Measured(row, samples), run.analysis


def _prepare(config: ProfileStepConfig) -> tuple[torch.device, str, Pace]:
    """Sets the device, its threads and switches; gives it, the number format in which matmuls compute, and the pace."""
    require(config)
    frameworks.load(config.execution.mode)
    if config.profile.exact or config.profile.losses:
        require_float64(torch.device(identity.resolve(config.device.type)), "profile.exact and profile.losses")
    device, _ = prepare(config.device, settled=False)
    effective = use_precision(config.precision, device)
    torch.manual_seed(config.seed)
    pace = replace(pace_for(device.type, config.timing), turn=max(1, config.workload.loader_workers))
    if config.parallel.processes > 1:  # further windows of one rank would wait for the others for ever
        pace = replace(pace, patience_s=0.0, precision=None)
    return device, "int8" if config.execution.multiplies_integers else effective, pace


def _observe(config: ProfileStepConfig, step: Step, pace: Pace, instruments: Instruments) -> Observation:
    is_alone = config.parallel.processes == 1
    watch, best = (instruments.probe, instruments.best) if is_alone else (None, UNKNOWN)
    samplers = instruments.samplers(polled=is_first_rank() or instruments.on_gpu)  # on a CPU the series is rank 0's
    tools = instruments.clock, pace, samplers, instruments.frequency_mhz
    return observe(step.call, *tools, watch, best, agreed, allocator.settle)


def _row(
    config: ProfileStepConfig, effective: str, step: Step, made_s: float, seen: Observation, instruments: Instruments
) -> ProfileRow:
    steps = Stats(seen.step_times_s)
    compiles = config.execution.mode not in ("eager", "tensorflow_eager")
    in_first_call_s = made_s + seen.warm_up.first_call_s - seen.time_s
    return ProfileRow.of(
        config,
        effective_precision=effective,
        # A GPU's clock falls as it warms up: its fastest window is one that it cannot hold.
        time_s=seen.time_s if instruments.on_gpu else seen.fastest_s,
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
        compile_s=max(0.0, in_first_call_s) if compiles else None,
        probe_s=instruments.probe.spent_s,
        probes=packed(seen.states, torch.get_num_threads()),
        restriction=restriction_of(instruments.device) or None,
        **step.facts,
    )


def _samples(config: ProfileStepConfig, seen: Observation) -> list[dict[str, object]]:
    return [
        {"replicate": config.replicate, "window": number, "sample": place, "time_s": seconds, "counted": counted}
        for counted, windows in ((True, seen.windows), (False, seen.discarded))
        for number, window in enumerate(windows)
        for place, seconds in enumerate(window.step_times_s)
    ]
