"""Measures one training or inference step: its time over steady windows, and how busy the device was meanwhile."""

import csv
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mfulab.hardware.compute import allow_tf32, effective_precision, prepare
from mfulab.measure import execution, workload
from mfulab.measure.clocks import clock_for
from mfulab.measure.ladder import samplers_for, set_readings
from mfulab.measure.memory import PeakMemory
from mfulab.measure.operators import COLUMNS, operator_table, trace_steps
from mfulab.measure.statistics import Stats, median_interval
from mfulab.measure.windows import CPU_PACE, CUDA_PACE, Observation, Pace, observe
from mfulab.models.build import build, enable_checkpointing, loss, make_batch
from mfulab.schema import ProfileRow, ProfileStepStep, TimingConfig
from mfulab.steps.base import Measured, UnsupportedError

TRACED_S = 0.3


def measure(config: ProfileStepStep, folder: Path) -> Measured:
    """One row for one model, workload, batch size, precision and execution mode; operators.csv in `folder`."""
    device, _ = prepare(config.device)
    effective = effective_precision(config.precision, device)
    if config.precision.tf32 and effective != "tf32":
        raise UnsupportedError("TF32 needs an NVIDIA GPU of compute capability 8.0 or later")
    allow_tf32(config.precision.tf32)
    torch.manual_seed(config.seed)
    memory = PeakMemory(device)
    began = time.perf_counter()
    step, final_loss = make_step(config, device)
    made = time.perf_counter()
    try:
        seen = observe(step, clock_for(device), pace_for(device, config.timing), samplers_for(device))
    except RuntimeError as error:
        if "not implemented for" in str(error):
            raise UnsupportedError(f"precision={config.precision.name} on {device.type}: {error}") from error
        raise
    row = _row(config, seen, effective)
    row.measured_s = time.perf_counter() - made
    if config.execution.mode != "eager":
        row.compile_s = max(0.0, made - began + seen.warm_up.first_call_s - seen.time_s)
    set_readings(row, {**seen.readings, "memory_bytes": memory.read()})
    if config.profile.operators or config.profile.trace:
        _trace(config, step, device, seen, folder)
    row.loss = final_loss()
    if not math.isfinite(row.loss):
        row.status, row.loss = "incorrect", None
        row.message = f"the loss is not finite after {seen.steps} steps in {config.precision.name}"
    return Measured(row, _samples(seen))


def make_step(config: ProfileStepStep, device: torch.device) -> tuple[Callable[[], Any], Callable[[], float]]:
    """The step as a function, and a function that gives the loss: of the last training step, or of one output."""
    dtype = workload.parameter_dtype(config.precision)
    with device:
        model = build(config.model)
    model = model.to(device=device, dtype=dtype)
    batch = make_batch(config.model, config.batch_size, config.sequence_length, device=device, dtype=dtype)
    model, batch = execution.arrange(model, batch, config.execution)
    task = config.model.task
    if config.workload.mode == "inference":
        model.eval()
    elif config.workload.checkpointing:
        enable_checkpointing(model)
    issued = execution.issue(model, batch, config.execution)
    graph = config.execution.mode == "cuda_graph"
    if config.workload.mode == "inference":
        step = workload.inference_step(issued, batch, config.precision, device)
    else:
        step = workload.training_step(
            issued, list(model.parameters()), batch, task, config.workload, config.precision, device, capturable=graph
        )
    if graph:
        step = execution.capture(step, device)

    if config.workload.mode == "inference":
        return step, lambda: float(loss(step(), batch.targets, task))
    latest: list[torch.Tensor] = []

    def remembered() -> torch.Tensor:
        latest[:] = [step()]
        return latest[0]

    return remembered, lambda: float(latest[0])


def pace_for(device: torch.device, timing: TimingConfig) -> Pace:
    """The device's pace with what the config sets in its place."""
    pace = CUDA_PACE if device.type == "cuda" else CPU_PACE
    return replace(
        pace,
        windows=timing.windows,
        window_s=timing.window_time_s or pace.window_s,
        warm_up_s=timing.warm_up_time_s or pace.warm_up_s,
    )


def _row(config: ProfileStepStep, seen: Observation, effective: str) -> ProfileRow:
    steps = Stats(seen.step_times_s)
    interval = median_interval([window.median_s for window in seen.windows])
    low, high = interval or (None, None)
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
        time_ci_low_s=low,
        time_ci_high_s=high,
        windows=len(seen.windows),
        steps=seen.steps,
        window_s=seen.length_s,
        warm_up_s=seen.warm_up.total_s,
        steady=seen.warm_up.steady,
    )


def _trace(
    config: ProfileStepStep, step: Callable[[], Any], device: torch.device, seen: Observation, folder: Path
) -> None:
    traced = trace_steps(step, device, max(1, min(3, round(TRACED_S / seen.time_s))))
    folder.mkdir(parents=True, exist_ok=True)
    if config.profile.operators:
        with (folder / "operators.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(operator_table(traced))
    if config.profile.trace:
        traced.profiler.export_chrome_trace(str(folder / "trace.json.gz"))


def _samples(seen: Observation) -> list[dict[str, object]]:
    return [
        {"window": number, "sample": place, "time_s": seconds}
        for number, window in enumerate(seen.windows)
        for place, seconds in enumerate(window.step_times_s)
    ]
