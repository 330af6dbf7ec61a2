"""Measures one step of training, inference or generation: warms up, times windows, then runs every
pass."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.core.said import Said
from mfulab.device import allocator, identity
from mfulab.device.compute import agreed, is_first_rank, prepare, require_float64, use_precision
from mfulab.device.gpu import restriction_of
from mfulab.device.samplers.selection import set_readings
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig
from mfulab.measurements.profile_step.passes import PASSES, Run, require
from mfulab.models import build, execution, frameworks, step
from mfulab.timing.instruments import Instruments
from mfulab.timing.pace import Pace, pace_for
from mfulab.timing.probe import UNKNOWN, packed
from mfulab.timing.statistics import Stats
from mfulab.timing.windows import Observation, observe
from mfulab.tracing.analysis import Analysis


def measure_step(config: ProfileStepConfig, folder: Path) -> tuple[Measured, Analysis | None]:
    """Measures the step in this process, which may be one of several ranks. Also returns the
    analysis of its trace, or None if it was not traced."""
    # `compile_s` is taken from the first replicate, which therefore must compile from scratch
    is_compiled = config.execution.mode == "compile" and config.replicate == 1
    try:
        with execution.empty_cache() if is_compiled else nullcontext():
            return _measure(config, folder)
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        device = identity.resolve(config.device.type)
        raise UnsupportedError(
            Said(
                "precision_refused",
                precision=config.precision.name,
                device=str(device),
                error=str(error),
            )
        ) from error


def _measure(config: ProfileStepConfig, folder: Path) -> tuple[Measured, Analysis | None]:
    device, effective_precision, pace = _prepare(config)
    with Instruments(device, folder) as instruments:
        _ = instruments.probe, instruments.memory  # made first, so the model's memory excludes them
        prepared = step.prepare_model(config, device)
        instruments.clock.synchronise()
        began = time.perf_counter()
        model_step = step.make(config, device, prepared)
        instruments.clock.synchronise()
        made_s = time.perf_counter() - began
        instruments.memory.forget()  # building in fp32 and filling a cache are no step
        observed = _warm_up_and_time(config, model_step, pace, instruments)
    row = _row(
        config,
        observed,
        made_s,
        instruments,
        effective_precision=effective_precision,
        **prepared.facts,
    )
    row.measured_s = time.perf_counter() - began
    run = Run(config, instruments, row, model_step, pace, observed, dict(observed.readings))
    for each_pass in PASSES:  # phases, traces, and further requested values
        if each_pass.applies(run):
            each_pass.fill(run)
    set_readings(row, run.readings, observed.steps)
    return Measured(row, _samples(config, observed)), run.analysis


def _prepare(config: ProfileStepConfig) -> tuple[torch.device, str, Pace]:
    """Sets up the device, its threads and its precision switches. Returns the device, the number
    format that matmuls compute in, and the pace."""
    require(config)
    frameworks.load(config.execution.mode)
    build.load(config.model, config.execution.mode == "compile")
    if config.profile.exact or config.profile.losses:
        require_float64(torch.device(identity.resolve(config.device.type)))
    device, _ = prepare(config.device, settled=False)
    effective_precision = use_precision(config.precision, device)
    torch.manual_seed(config.seed)
    turn = max(1, config.workload.loader_workers)
    pace = replace(pace_for(device.type, config.timing), turn=turn)
    # if one rank timed further windows, it would wait forever for the others
    if config.parallel.processes > 1:
        pace = replace(pace, patience_s=0.0, precision=None)
    if config.execution.multiplies_integers:
        effective_precision = "int8"
    return device, effective_precision, pace


def _warm_up_and_time(
    config: ProfileStepConfig, model_step: step.Step, pace: Pace, instruments: Instruments
) -> Observation:
    is_alone = config.parallel.processes == 1
    watch, best = (instruments.probe, instruments.best) if is_alone else (None, UNKNOWN)
    # on a CPU only rank 0 records the series
    samplers = instruments.samplers(polled=is_first_rank() or instruments.on_gpu)

    def settle() -> None:
        """Brings the process into its steady state, so that peak memory does not include
        compilation."""
        allocator.settle()
        if not config.execution.replays:  # a CUDA graph's memory shows only while it is captured
            instruments.memory.forget()

    tools = instruments.clock, pace, samplers, instruments.frequency_mhz
    return observe(model_step.call, *tools, watch, best, agree=agreed, settle=settle)


def _row(
    config: ProfileStepConfig,
    observed: Observation,
    made_s: float,
    instruments: Instruments,
    **facts: Any,
) -> ProfileRow:
    steps = Stats(observed.step_times_s)
    warm_up = observed.warm_up
    compiles = config.execution.mode not in ("eager", "tensorflow_eager")
    return ProfileRow.of(
        config,
        # A GPU's clock falls as it heats up, so it cannot sustain its fastest window.
        time_s=observed.time_s if instruments.on_gpu else observed.fastest_s,
        median_time_s=observed.time_s,
        time_p5_s=steps.percentile(5),
        time_p95_s=steps.percentile(95),
        within_spread_percent=observed.spread_percent,
        windows=len(observed.windows),
        disturbed_windows=observed.disturbed,
        repeated_windows=len(observed.discarded),
        steps=observed.steps,
        window_s=observed.length_s,
        warm_up_s=warm_up.total_s,
        first_call_s=warm_up.first_call_s,
        steady=warm_up.steady,
        compile_s=max(0.0, made_s + warm_up.first_call_s - observed.time_s) if compiles else None,
        probe_s=instruments.probe.spent_s,
        probes=packed(observed.states, torch.get_num_threads()),
        restriction=restriction_of(instruments.device) or None,
        **facts,
    )


def _samples(config: ProfileStepConfig, observed: Observation) -> list[dict[str, object]]:
    """One row per step of all windows; `counted` is False for steps of discarded windows."""
    samples = list[dict[str, object]]()
    for is_counted, windows in ((True, observed.windows), (False, observed.discarded)):
        for number, window in enumerate(windows):
            for index, seconds in enumerate(window.step_times_s):
                sample: dict[str, object] = {
                    "replicate": config.replicate,
                    "window": number,
                    "sample": index,
                    "time_s": seconds,
                    "counted": is_counted,
                }
                samples.append(sample)
    return samples
