"""Times one matmul implementation interleaved with the library's, and checks the result before and
after."""

import contextlib
import importlib
import itertools
import json
import math
import os
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numba
import threadpoolctl
import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import Format
from mfulab.core.groups import KernelConfig
from mfulab.core.measurement import Measured
from mfulab.core.said import Said
from mfulab.device import ByKind, is_gpu, require_cuda, synchronise, vendors
from mfulab.device.compute import prepare
from mfulab.device.cpu import cpu
from mfulab.device.gpu import uuid_of
from mfulab.device.samplers.cpu_sampler import cpu_sampler
from mfulab.device.samplers.reading import sampling
from mfulab.kernels.base import Launch, MatmulKernel, Shape
from mfulab.kernels.occupancy import occupancy_percent
from mfulab.kernels.torch_scaled import reference_for
from mfulab.kernels.verification import Check, Operands, check, exact_product, random_operands
from mfulab.measurements.bench_matmul import BenchMatmulConfig, MatmulRow
from mfulab.timing.device_timer import DeviceTimer
from mfulab.timing.instruments import Instruments
from mfulab.timing.pace import Pace, is_short, pace_for
from mfulab.timing.probe import packed
from mfulab.timing.repetitions import (
    LONGEST_SPIN_S,
    Budget,
    Call,
    HostTimer,
    Repetition,
    interleave,
    summarise,
)
from mfulab.timing.transfers import median_wall_s, time_transfers

# Pace of each process. A matmul is steady by nvbench's criterion.
PACE = ByKind(
    cpu=Pace(2, 0.2, 0.4, 0.0, patience_s=1.0), gpu=Pace(3, 0.1, 0.3, 0.0, patience_s=1.0)
)
# Least time for which allocations and transfers are repeated. On a CPU, other libraries' threads
# have stopped spinning for most of it.
TRANSFERS_S = ByKind(cpu=LONGEST_SPIN_S, gpu=0.0)

BURST_S = 0.02  # length of a burst of calls, too short for a power limit to act
REST_S = 2.0  # rest before a burst


@dataclass(frozen=True)
class _Bench:
    """A kernel on its device, and the shape and number format to time it with. `threads` is None on
    a GPU."""

    config: BenchMatmulConfig
    device: str
    kernel: MatmulKernel
    shape: Shape
    form: Format
    threads: int | None

    @property
    def times_transfers(self) -> bool:
        """True if allocations and transfers are timed, too: in the first process, unless windows
        are short and transfers were not requested."""
        return self.config.replicate == 1 and (self.config.transfers or not self.is_short)

    @property
    def is_short(self) -> bool:
        """True if the config's windows on a GPU are shorter than its usual ones."""
        return is_short(self.device, self.config.timing)


def measure(config: BenchMatmulConfig, folder: Path) -> Measured:
    """Returns a row with the times of the matmul. If its error exceeds the tolerance, the row has
    no times."""
    bench = _prepare(config)
    shape = bench.shape
    form = bench.form
    transfers_s = TRANSFERS_S[bench.device]
    allocate = partial(_allocate, shape, form, bench.device)
    allocation_s = (
        median_wall_s(allocate, bench.device, 3, transfers_s) if bench.times_transfers else None
    )
    operands = random_operands(shape, form, bench.device, config.seed)
    exact = exact_product(operands.a, operands.b)
    with _needs_packages(config.kernel):
        call = _BoundKernel(bench.kernel, operands)
        operands.poison()
        with _notes_launch(call.launch):
            first_call_s, returned = _time_call(call, bench.device)
    before = check(_result(operands, returned), exact, form, shape.k)
    row = _row(bench, before)
    if not before.correct:
        return Measured(_incorrect(row, before, "at the first call"))
    row.first_call_s = first_call_s
    row.allocation_s = allocation_s
    with Instruments(operands.c.device, folder) as instruments:
        repetitions = _time_interleaved(bench, call, operands, exact, row, instruments)
    # Checks what timing left in C; a kernel that returns its result is called once more.
    after = check(_result(operands, None if returned is None else call()), exact, form, shape.k)
    samples = [{"replicate": config.replicate, **asdict(repetition)} for repetition in repetitions]
    if not after.correct:
        row.first_call_s = row.allocation_s = row.first_calls_mean_s = None
        return Measured(_incorrect(row, after, "after timing"), samples)
    del exact
    _fill_times(row, repetitions, config.kernel.name)
    if bench.times_transfers:
        _fill_transfers(row, bench, operands)
        if is_gpu(bench.device) and row.time_s and not bench.is_short:
            _fill_burst(row, call, operands.c.device, row.time_s)
    return Measured(row, samples)


def _prepare(config: BenchMatmulConfig) -> _Bench:
    """Makes the kernel on its device, and sets the number of threads on a CPU. Raises
    UnsupportedError if the kernel cannot run."""
    require_cuda(config.device.type, f"kernel={config.kernel.name}")
    device, threads = prepare(config.device)
    shape = Shape(*config.shape)
    form = config.precision.form
    module, _, name = config.kernel.target.rpartition(".")
    with _needs_packages(config.kernel):
        kernel_class = getattr(importlib.import_module(module), name)
        kernel: MatmulKernel = kernel_class(form.name, config.kernel.block)
    kernel.require(device.type, shape)
    if is_gpu(device):
        return _Bench(config, device.type, kernel, shape, form, None)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    threadpoolctl.threadpool_limits(threads)  # NumPy's BLAS
    return _Bench(config, device.type, kernel, shape, form, threads)


def _row(bench: _Bench, checked: Check) -> MatmulRow:
    kernel = bench.kernel
    shape = bench.shape
    form = bench.form
    launch = kernel.launch(shape)
    resources = kernel.resources()
    shared_memory_bytes = resources.shared_memory_bytes
    if shared_memory_bytes is not None:
        shared_memory_bytes += launch.shared_memory_bytes
    operand_bytes = getattr(torch, form.operand).itemsize
    output_bytes = getattr(torch, form.output).itemsize
    return MatmulRow.of(
        bench.config,
        family=kernel.family,
        after=kernel.after,
        adds=kernel.adds,
        **shape._asdict(),
        **asdict(checked),
        first_calls=bench.config.first_calls,
        flops=shape.flops,
        bytes_moved=shape.bytes_moved(operand_bytes, output_bytes),
        block=json.dumps(launch.block) if launch.block else None,
        grid=json.dumps(launch.grid) if launch.grid else None,
        registers=resources.registers,
        shared_memory_bytes=shared_memory_bytes,
        spill_bytes=resources.spill_bytes,
        occupancy_percent=occupancy_percent(resources, launch),
        threads=bench.threads,
    )


def _time_interleaved(
    bench: _Bench,
    call: "_BoundKernel",
    operands: Operands,
    exact: torch.Tensor,
    row: MatmulRow,
    instruments: Instruments,
) -> list[Repetition]:
    """Times the kernel interleaved with the library's matmul, if the library has this one, and sets
    the row's columns about timing. Leaves new values in the inputs of `operands`."""
    started = time.perf_counter()
    timing = bench.config.timing
    count = bench.config.first_calls
    if bench.config.replicate == 1 and count:
        later_s = sum(_time_call(call, bench.device)[0] for _ in range(count - 1))
        row.first_calls_mean_s = ((row.first_call_s or 0) + later_s) / count
    contestants = {bench.config.kernel.name: call}
    reference = reference_for(call.kernel, bench.device, call.shape)
    if reference is not None:
        row.reference_name, library = reference
        # The library has its own output, as the kernel's is checked again afterwards.
        library_operands = Operands(operands.a, operands.b, torch.empty_like(operands.c))
        contestants[_reference_key(row)] = _BoundKernel(library, library_operands)
    seeds = itertools.count(bench.config.seed + 1)

    def refresh() -> None:
        operands.refresh(exact, next(seeds))
        for contestant in contestants.values():
            contestant.prepare()

    device = operands.c.device
    probe = instruments.probe
    timer: HostTimer | DeviceTimer
    if not is_gpu(device):
        timer = HostTimer(cpu().last_level_cache_bytes)
    elif bench.is_short:
        timer = DeviceTimer(device, timing.window_time_s or 0.0, timing.warm_up_time_s or 0.0)
    else:
        timer = DeviceTimer(device)
    # CPU time of other processes. Kernel and reference alternate, so neither has its own share.
    cpu_samplers = [cpu_sampler(bench.threads)] if bench.threads else []
    with _notes_launch(call.launch), sampling(cpu_samplers) as readings:
        timed = interleave(contestants, timer, _budget(bench), refresh, probe, instruments.best)
    row.probes = packed(timed.states, torch.get_num_threads())
    row.disturbed_windows = len(
        {repetition.round for repetition in timed.repetitions if repetition.disturbed}
    )
    row.repeated_windows = timed.repeated
    row.other_processes_percent = readings[0]["other_processes_percent"].value if readings else None
    row.probe_s = probe.spent_s
    row.measured_s = time.perf_counter() - started
    return timed.repetitions


def _fill_transfers(row: MatmulRow, bench: _Bench, operands: Operands) -> None:
    """Times the way from arrays on the host to the result on the host, and on a GPU each
    transfer."""
    shape = bench.shape
    a = operands.a.cpu()
    b = operands.b.cpu()

    def end_to_end() -> None:
        """Copies in, multiplies and copies out."""
        c = torch.empty(
            shape.batch,
            shape.m,
            shape.n,
            dtype=getattr(torch, bench.form.output),
            device=bench.device,
        )
        copies = Operands(a.to(bench.device), b.to(bench.device), c)
        call = _BoundKernel(bench.kernel, copies)
        _result(copies, call()).cpu()

    least_calls = 3 if (row.time_s or 0) < 1 else 1
    transfers_s = TRANSFERS_S[bench.device]
    row.end_to_end_s = median_wall_s(end_to_end, bench.device, least_calls, transfers_s)
    if is_gpu(bench.device):
        for name, value in time_transfers((operands.a, operands.b), operands.c).items():
            setattr(row, name, value)


def _fill_burst(row: MatmulRow, call: Call, device: torch.device, time_s: float) -> None:
    """Sets time, clock and power of a GPU in a burst of calls after a rest, and its power under
    sustained calls."""
    timer = DeviceTimer(device)
    calls = math.ceil(BURST_S / time_s)
    uuid = uuid_of(device)
    read = vendors.of(uuid).probe(uuid, os.getpid())
    counters = dict[str, float | None]()
    timer.during = lambda: counters.update(read())
    burst = timer.burst(call, calls, REST_S)
    row.burst_time_s = burst.time_s
    row.burst_clock_mhz = burst.clock_mhz
    row.burst_power_w = counters.get("instant_power_w")
    timer.settle(call, calls, time_s)
    timer.time(call, calls)
    row.power_w = counters.get("instant_power_w")


@contextlib.contextmanager
def _needs_packages(config: KernelConfig) -> Iterator[None]:
    """Turns a missing package into UnsupportedError. Some kernels import theirs only at the first
    call."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise UnsupportedError(
            Said("kernel_needs_package", kernel=config.name, package=missing.name)
        ) from None


@contextlib.contextmanager
def _notes_launch(launch: Launch) -> Iterator[None]:
    """Adds a note with the CUDA error's name and the launch configuration to an error that lacks
    them."""
    try:
        yield
    except UnsupportedError:
        raise
    except Exception as error:
        if launch.grid and str(launch) not in str(error):
            name = re.search(r"cudaError\w+|CUDA_ERROR_\w+", str(error))
            error.add_note(f"{name[0]}, {launch}" if name else str(launch))
        raise


class _BoundKernel:
    """A kernel bound to its operands. Calling it multiplies once."""

    def __init__(self, kernel: MatmulKernel, operands: Operands) -> None:
        self.kernel = kernel
        self.operands = operands
        batch, m, n = operands.c.shape
        self.shape = Shape(batch, m, n, operands.a.shape[2])
        self.launch = kernel.launch(self.shape)
        self.prepare()

    def prepare(self) -> None:
        """Prepares the operands with their current values. Some kernels need them in another
        form."""
        self.prepared = self.kernel.prepare(self.operands.a, self.operands.b, self.operands.c)

    def __call__(self) -> Any:
        return self.kernel.run(*self.prepared, launch=self.launch)


def _budget(bench: _Bench) -> Budget:
    timing = bench.config.timing
    pace = pace_for(bench.device, timing, PACE)
    time_s = pace.windows * pace.window_s
    # rounds on a GPU also include sustained work that is not timed
    most_windows = 10 if bench.device == "cpu" else 20
    limit_s = min(most_windows * time_s, timing.time_limit_s / 4)
    return Budget(pace.warm_up_s, time_s, limit_s, pace.windows, pace.patience_s, pace.precision)


def _reference_key(row: MatmulRow) -> str:
    """Name of the reference among the contestants. The prefix avoids a clash with the same library
    as a kernel."""
    return f"reference: {row.reference_name}"


def _incorrect(row: MatmulRow, checked: Check, when: str) -> MatmulRow:
    """Marks the row as incorrect and sets its errors. `when` is the time of the failed check, as a
    text."""
    row.status = "incorrect"
    row.message = f"{when}: {checked}"
    row.relative_error = checked.relative_error
    row.max_absolute_error = checked.max_absolute_error
    return row


def _fill_times(row: MatmulRow, repetitions: list[Repetition], kernel: str) -> None:
    hot = summarise(repetitions, kernel, "hot")
    cold = summarise(repetitions, kernel, "cold")
    on_cpu = row.threads is not None
    row.time_s = hot.low_s if on_cpu else hot.median_s
    row.median_time_s = row.hot_time_s = hot.median_s
    row.hot_iqr_s = hot.iqr_s
    row.cold_time_s = cold.median_s
    row.cold_iqr_s = cold.iqr_s
    row.repetitions = hot.count
    if not on_cpu:
        row.unheld_repetitions = sum(
            repetition.temperature == "hot" and not repetition.held
            for repetition in repetitions
            if repetition.implementation == kernel
        )
    reference = _reference_key(row)
    if row.reference_name is not None:
        hot_reference = summarise(repetitions, reference, "hot")
        row.reference_time_s = hot_reference.low_s if on_cpu else hot_reference.median_s
        row.reference_cold_time_s = summarise(repetitions, reference, "cold").median_s
    row.clock_mhz = _mean_clock(repetitions, kernel)
    row.reference_clock_mhz = _mean_clock(repetitions, reference)


def _mean_clock(repetitions: list[Repetition], implementation: str) -> float | None:
    """Mean clock in MHz over an implementation's repetitions, or None if none has one."""
    clocks = [
        repetition.clock_mhz
        for repetition in repetitions
        if repetition.implementation == implementation and repetition.clock_mhz is not None
    ]
    return statistics.fmean(clocks) if clocks else None


def _allocate(shape: Shape, form: Format, device: str) -> None:
    """Allocates A, B and C. On a GPU, torch's cache is emptied first; on a CPU, pages are
    touched."""
    if is_gpu(device):
        torch.cuda.empty_cache()
    batch, m, n, k = shape
    matrices = ((m, k, form.operand), (k, n, form.operand), (m, n, form.output))
    for rows, columns, dtype in matrices:
        matrix = torch.empty(batch, rows, columns, dtype=getattr(torch, dtype), device=device)
        if device == "cpu":
            matrix.view(torch.uint8).fill_(1)


def _time_call(call: Call, device: str) -> tuple[float, torch.Tensor | None]:
    """Times one call. Returns seconds, and the result if the kernel returns one."""
    synchronise(device)
    started = time.perf_counter()
    returned = call()
    synchronise(device)
    return time.perf_counter() - started, returned


def _result(operands: Operands, returned: torch.Tensor | None) -> torch.Tensor:
    """Result of a call: what the kernel returned, else C."""
    if returned is None:
        return operands.c
    return returned.view_as(operands.c)
