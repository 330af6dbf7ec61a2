"""One ceiling of this device: the best large matmul in one precision, or the memory bandwidth of a triad."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import UnreadableError, read_csv
from mfulab.core.groups import PrecisionConfig
from mfulab.core.measurement import Measured
from mfulab.core.replicates import base_name
from mfulab.device import is_gpu
from mfulab.device.compute import allow_tf32, effective_precision, emulated, prepare
from mfulab.device.gpu import properties_of
from mfulab.device.local_peak import peak_of
from mfulab.device.peaks import memory_peak_gb_s
from mfulab.device.samplers.series import Series
from mfulab.measurements.ceilings import CeilingRow, CeilingsConfig
from mfulab.timing.best_matmul import CAREFUL, QUICK, Search, best_bandwidth, fastest_matmul, sweep_matmuls, sweep_triad
from mfulab.timing.probe import Probe, packed


def measure(config: CeilingsConfig, folder: Path) -> Measured:
    """Measures `config.ceiling`. Every sample holds matmuls back to back; the ceiling is that of the best shape."""
    device, threads = prepare(config.device)
    row = CeilingRow(ceiling=config.ceiling, threads=threads if device.type == "cpu" else None)
    probe = Probe(device)
    states = [probe()]
    began = time.perf_counter()
    wanted, search = config.precision, QUICK if config.search == "quick" else CAREFUL[device.type]
    if wanted:
        measured = _matmuls(row, config, wanted, device, threads, folder, search)
    else:
        measured = _memory(row, device, folder, search)
    row.measured_s = time.perf_counter() - began
    row.probes, row.probe_s = packed([*states, probe()], torch.get_num_threads()), probe.spent_s
    return Measured(row, [{"replicate": config.replicate, **sample} for sample in measured.samples])


def _matmuls(
    row: CeilingRow,
    config: CeilingsConfig,
    precision: PrecisionConfig,
    device: torch.device,
    threads: int,
    folder: Path,
    search: Search,
) -> Measured:
    effective = effective_precision(precision, device)
    reason = emulated(effective, device)
    if reason and effective not in config.device.peak_tflop_s:
        row.emulated, row.message = True, f"{reason}: {effective} is emulated, and MFU in it divides by fp32's ceiling"
        return Measured(row)
    if precision.tf32 and effective != "tf32":
        raise UnsupportedError("TF32 needs an NVIDIA GPU of compute capability 8.0 or later; matmuls here stay fp32")
    allow_tf32(precision.tf32)
    with _clock(row, device, folder, search):
        samples = sweep_matmuls(effective, device, search, _found_before(folder))
    if clocks := [sample["clock_mhz"] for sample in samples if sample.get("clock_mhz")]:
        row.clock_mhz = row.clock_mhz or fmean(clocks)
    peak = peak_of(device, threads, effective, config.device)
    row.emulated = False
    row.measured_with, row.measured_shape, row.measured_tflop_s, row.burst_tflop_s = fastest_matmul(samples, device)
    row.computed_tflop_s, row.max_clock_tflop_s, row.datasheet_tflop_s = peak.spec, peak.max_clock, peak.datasheet
    row.computed_clock_mhz = peak.spec_clock_mhz
    row.computed_formula, row.computed_source = peak.formula or None, peak.source or None
    row.message = peak.reason
    return Measured(row, samples)


def _found_before(folder: Path) -> tuple[str, str] | None:
    """Library and shape of the best matmul that the run's first process found: later ones repeat that alone."""
    first = base_name(folder.name)
    try:
        (row,) = read_csv(folder.with_name(first) / "row.csv") if first != folder.name else ({},)
    except (OSError, UnreadableError, ValueError):
        return None
    with_, shape = row.get("measured_with"), row.get("measured_shape")
    return (with_, shape) if with_ and shape else None


def _memory(row: CeilingRow, device: torch.device, folder: Path, search: Search) -> Measured:
    with _clock(row, device, folder, search):
        samples = sweep_triad(device, search)
    row.measured_gb_s = best_bandwidth(samples, device)
    row.measured_shape = str(samples[0]["elements"])
    if is_gpu(device):
        row.computed_gb_s = memory_peak_gb_s(properties_of(device))
    if row.computed_gb_s is not None:
        row.computed_formula = "memory clock × bus width × 2"
        row.computed_source = "NVML nvmlDeviceGetMaxClockInfo, nvmlDeviceGetMemoryBusWidth"
    else:
        row.message = "this device does not report its memory clock and bus width, so there is no computed bandwidth"
    return Measured(row, samples)


@contextlib.contextmanager
def _clock(row: CeilingRow, device: torch.device, folder: Path, search: Search) -> Iterator[None]:
    """Fills the row's mean SM clock over what runs inside, from a series that stays in `folder`; a CPU reports none.

    A quick search is over before the poller has started.
    """
    if not is_gpu(device) or search is QUICK:
        yield
        return
    series = Series(device, folder / "series.csv").open()
    series.start()
    try:
        yield
        row.clock_mhz = series.stop()["clock_mhz"].value
    finally:
        series.close()
