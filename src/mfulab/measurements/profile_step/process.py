"""Measures one step in this process: warms up, times windows, then makes every pass that applies."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.device import allocator, identity
from mfulab.device.compute import agreed, allow_tf32, effective_precision, is_first_rank, prepare
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
    device, effective = _prepare(config)
    with Instruments(device, folder) as instruments:
        made = _make(config, instruments)
        pace = pace_for(device.type, config.timing)
        if config.parallel.processes > 1:  # further windows of one rank would wait for the others for ever
            pace = replace(pace, patience_s=0.0, precision=None)
        seen = _observe(config, made.step, pace, instruments)
    row = _row(config, effective, made, seen, instruments)
    run = Run(config, instruments, row, made.step, pace, seen, dict(seen.readings))
    for each in PASSES:
        if each.applies(run):
            each.fill(run)
    set_readings(row, run.readings, seen.steps)
    return Measured(row, _samples(config, seen)), run.analysis


def _prepare(config: ProfileStepConfig) -> tuple[torch.device, str]:
    """Sets the device, its threads and switches; gives it with the number format in which matmuls will compute."""
    require(config)
    frameworks.load(config.execution.mode)
    device, _ = prepare(config.device, settled=False)
    effective = effective_precision(config.precision, device)
    if config.precision.tf32 and effective != "tf32":
        raise UnsupportedError("TF32 needs an NVIDIA GPU of compute capability 8.0 or later")
    allow_tf32(config.precision.tf32)
    torch.manual_seed(config.seed)
    as_integers = config.execution.multiplies_integers or config.execution.quantisation.endswith("c_int8")
    return device, "int8" if as_integers else effective


class Made(NamedTuple):
    """A step, and when making it began and ended by `time.perf_counter`."""

    step: Step
    began_s: float
    ended_s: float


def _make(config: ProfileStepConfig, instruments: Instruments) -> Made:
    """Makes the step, after the probe, whose memory is not the model's."""
    _ = instruments.probe, instruments.memory
    began = time.perf_counter()
    made = Made(make(config, instruments.device), began, time.perf_counter())
    if config.workload.mode == "decoding":
        instruments.memory.forget()  # filling the cache is not the step
    return made


def _observe(config: ProfileStepConfig, step: Step, pace: Pace, instruments: Instruments) -> Observation:
    is_alone = config.parallel.processes == 1
    watch, best = (instruments.probe, instruments.best) if is_alone else (None, UNKNOWN)
    samplers = instruments.samplers(polled=is_first_rank() or instruments.on_gpu)  # on a CPU the series is rank 0's
    tools = instruments.clock, pace, samplers, instruments.frequency_mhz
    return observe(step.call, *tools, watch, best, agreed, allocator.settle)


def _row(
    config: ProfileStepConfig, effective: str, made: Made, seen: Observation, instruments: Instruments
) -> ProfileRow:
    steps = Stats(seen.step_times_s)
    compiles = config.execution.mode not in ("eager", "tensorflow_eager")
    in_first_call_s = made.ended_s - made.began_s + seen.warm_up.first_call_s - seen.time_s
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
        measured_s=time.perf_counter() - made.ended_s,
        restriction=restriction_of(instruments.device) or None,
        **made.step.facts,
    )


def _samples(config: ProfileStepConfig, seen: Observation) -> list[dict[str, object]]:
    return [
        {"replicate": config.replicate, "window": number, "sample": place, "time_s": seconds, "counted": counted}
        for counted, windows in ((True, seen.windows), (False, seen.discarded))
        for number, window in enumerate(windows)
        for place, seconds in enumerate(window.step_times_s)
    ]
