"""Runs a load whose utilization is known by construction, and reads every counter of the device
while it runs."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.measurement import Measured
from mfulab.core.said import Said
from mfulab.device import ByKind, is_gpu, require_cuda
from mfulab.device.compute import allow_tf32, cores_filled, effective_precision, prepare
from mfulab.device.samplers.cpu_sampler import cpu_sampler
from mfulab.device.samplers.reading import (
    Reading,
    Readings,
    Watched,
    first_available,
    sampler,
    sampling,
)
from mfulab.device.samplers.selection import fill
from mfulab.device.samplers.series import read_series
from mfulab.measurements.read_utilization import ReadingRow, ReadUtilizationConfig
from mfulab.models.loads import LOADS, Loader, Ran, filled
from mfulab.timing.instruments import Instruments
from mfulab.tracing.operators import BlockTrace

PRECISIONS = ByKind(
    cpu=("fp64", "fp32", "bf16", "fp16"), gpu=("fp64", "fp32", "tf32", "bf16", "fp16")
)
TRACED_S = 1.0
LEAST_POLLS = 2  # readings to wait for before the loop, and after it
# Counters of the device are updated no more often than this.
TICK_S = ByKind(cpu=0.02, gpu=0.17)
LONGEST_START_S = 30.0  # time that the poller has to start
Line = Mapping[str, float | None]
# Column → name that the samplers report it by. OF_CPU has the columns that only a CPU fills.
SAMPLED = {
    "mfulab_percent": "utilization_percent",
    "sm_active_percent": "sm_active_percent",
    "tensor_active_percent": "tensor_active_percent",
    "other_processes_percent": "other_processes_percent",
    "nvml_percent": "",
}
OF_CPU = {
    "cgroup_percent": "cgroup_utilization_percent",
    "proc_stat_percent": "system_utilization_percent",
    "psutil_process_percent": "psutil_process_percent",
    "psutil_machine_percent": "psutil_machine_percent",
}
NO_GPU = Said("counter_of_gpus")
NO_CPU = Said("counter_of_cpus")


def measure(config: ReadUtilizationConfig, folder: Path) -> Measured:
    """Returns one row for one load. Writes the single readings over time to series.csv in
    `folder`."""
    device, _ = prepare(config.device)
    require_cuda(device, f"load={config.load}")
    if effective_precision(config.precision, device) not in PRECISIONS[device.type]:
        raise UnsupportedError(
            Said(
                "loads_multiply_in",
                precision=config.precision.name,
                device=device.type,
                choices=", ".join(PRECISIONS[device.type]),
            )
        )
    allow_tf32(config.precision.tf32)
    if is_gpu(device):
        properties = torch.cuda.get_device_properties(device)
        units = properties.multi_processor_count
    else:
        units = cores_filled()
    loader = Loader(LOADS[config.load], device, getattr(torch, config.precision.dtype), config.seed)
    loader.run(min(0.5, config.load_time_s))
    traced = _profiler_reading(loader, device, folder / "trace.json")
    with Instruments(device, folder, config.polling_period_s) as instruments:
        ran, sampled, began, ended = _run_sampled(loader, config, instruments)
        lines = read_series(folder / "series.csv")
    row = ReadingRow.of(
        config,
        window_s=ran.wall_s,
        units=units,
        duty_percent=100 * ran.duty,
        truth_percent=100 * ran.duty * filled(loader.load, device, units),
        useful_percent=100 * loader.load.useful if ran.flops else None,
        flops=ran.flops,
        useful_flops=ran.useful_flops,
    )
    polls = polled(lines, began, ended, config.polling_period_s, TICK_S[device.type])
    mean = polls.pop("polled_mean_percent")
    row.polls = int(polls.pop("polls").value or 0)
    if is_gpu(device):
        sampled["nvml_percent"] = mean
    fill(row, {**sampled, **traced, **polls})
    row.measured_s = ran.wall_s
    return Measured(row, [{"window": 0, "sample": 0, "time_s": ran.wall_s}])


def _run_sampled(
    loader: Loader, config: ReadUtilizationConfig, instruments: Instruments
) -> tuple[Ran, Readings, float, float]:
    """Runs the load under all samplers. Returns what it did, the readings by column, and its begin
    and end in seconds of the monotonic clock."""
    period = config.polling_period_s
    series = instruments.series.open()
    on_gpu = instruments.on_gpu
    _wait(lambda: series.polls() >= LEAST_POLLS, LONGEST_START_S)
    usual = instruments.samplers(polled=False)
    of_cpu = cpu_sampler if on_gpu else psutil_sampler
    others = of_cpu(cores_filled())
    began = time.monotonic()
    with sampling([others, *usual, series]) as readings:
        ran = loader.run(config.load_time_s)
    ended = time.monotonic()
    polls_before = series.polls()
    _wait(lambda: series.polls() >= polls_before + LEAST_POLLS + 1, 4 * period + 1)
    of_others, *of_usual, _ = readings
    best = of_others | first_available(of_usual)
    absent = Reading(None, "%", "NVML", reason=NO_GPU)
    unknown = Reading(None, "%", "CPU", reason=NO_CPU)
    sampled = {column: best.get(name, absent) for column, name in SAMPLED.items()}
    sampled |= {column: unknown if on_gpu else best[name] for column, name in OF_CPU.items()}
    return ran, sampled, began, ended


@sampler
def psutil_sampler(cores: float) -> Watched:
    """Samples psutil's `cpu_percent` of the process and of the machine between two calls, as its
    documentation shows."""
    process = psutil.Process()
    began_s = time.perf_counter()
    process.cpu_percent()
    psutil.cpu_percent()
    yield
    window_s = time.perf_counter() - began_s
    own = process.cpu_percent() / cores
    machine = psutil.cpu_percent()
    return {
        "psutil_process_percent": Reading(own, "%", "psutil.Process.cpu_percent ÷ cores", window_s),
        "psutil_machine_percent": Reading(machine, "%", "psutil.cpu_percent", window_s),
    }


def _profiler_reading(loader: Loader, device: torch.device, path: Path) -> Readings:
    """Returns the percentage of time that torch.profiler attributes to kernels (GPU) or operators
    (CPU), over one second of the load."""
    trace = BlockTrace(device, path)
    trace.start()
    loader.run(TRACED_S)
    analysis = trace.stop()
    path.unlink(missing_ok=True)
    if is_gpu(device):
        return {"profiler_percent": analysis["kernel_busy_percent"]}
    parts = [analysis[name] for name in ("matmul_percent", "other_operators_percent")]
    # No operator in the trace means that the load calls none, so the profiler's value is 0.
    percent = sum(part.value or 0.0 for part in parts)
    return {"profiler_percent": Reading(percent, "%", "torch.profiler, operators ÷ time", TRACED_S)}


def polled(
    lines: Sequence[Line], began: float, ended: float, period: float, tick: float
) -> Readings:
    """Picks the single readings before, during and after a loop, and the mean of those whose
    `period` lies inside it. `began` and `ended` are in seconds on the clock of the lines'
    `monotonic_s`. Values are None, with a reason, if there is no such reading or `period` is
    shorter than `tick`."""
    no_outer = Said("no_reading_there")
    no_inner = Said("no_period_inside", period=period, loop=ended - began)
    if period < tick:
        no_outer = Said("period_below_tick", period=period, tick=tick)
        no_inner = no_outer
        lines = ()
    inside: list[tuple[float, float]] = []
    before: float | None = None  # the last value before the loop
    after: float | None = None  # the first value after it
    for line in lines:
        stamp = line["monotonic_s"] or 0.0
        value = line.get("utilization_percent")
        if value is None:
            continue
        if stamp <= began:
            before = value
        if stamp - period >= began and stamp <= ended:
            inside.append((stamp, value))
        if stamp - period >= ended and after is None:
            after = value
    during = mean = None
    if inside:
        during = min(inside, key=lambda sample: abs(sample[0] - (began + ended) / 2))[1]
        mean = statistics.fmean(value for _, value in inside)
    source = f"polled each {period:g} s"

    def reading(value: float | None, why: Said) -> Reading:
        return Reading(value, "%", source, reason=why if value is None else None)

    return {
        "polls": Reading(len(inside), "", source),
        "before_percent": reading(before, no_outer),
        "after_percent": reading(after, no_outer),
        "during_percent": reading(during, no_inner),
        "polled_mean_percent": reading(mean, no_inner),
    }


def _wait(done: Callable[[], bool], most_s: float) -> None:
    """Waits until `done()` is True, but at most `most_s` seconds."""
    deadline = time.monotonic() + most_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)
