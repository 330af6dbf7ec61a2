"""Measures one ceiling of this device: the best large matmul in one precision, or the memory
bandwidth of a triad."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from mfulab.core.files import UnreadableError, read_csv
from mfulab.core.groups import DeviceConfig, PrecisionConfig
from mfulab.core.measurement import Measured
from mfulab.core.replicates import base_name
from mfulab.core.said import Said, cell_of
from mfulab.device import is_gpu
from mfulab.device.compute import emulated, prepare, use_precision
from mfulab.device.gpu import properties_of
from mfulab.device.local_peak import peak_of
from mfulab.device.peaks import memory_peak_gb_s
from mfulab.measurements.ceilings import CeilingRow, CeilingsConfig
from mfulab.timing.best_matmul import (
    CAREFUL,
    QUICK,
    MatmulSample,
    Search,
    TriadSample,
    best_bandwidth,
    fastest_matmul,
    sweep_matmuls,
    sweep_triad,
)
from mfulab.timing.instruments import Instruments
from mfulab.timing.probe import packed


def measure(config: CeilingsConfig, folder: Path) -> Measured:
    """Measures `config.ceiling` and returns its row. Each sample times matmuls, or triads, back to
    back; the best shape is the ceiling."""
    device, threads = prepare(config.device)
    row = CeilingRow(ceiling=config.ceiling, threads=threads if device.type == "cpu" else None)
    probe = Instruments(device, folder).probe
    states = [probe()]
    began = time.perf_counter()
    search = QUICK if config.search == "quick" else CAREFUL[device.type]
    samples: Sequence[MatmulSample | TriadSample]
    if config.precision is None:
        samples = _memory(row, device, search)
    else:
        samples = _matmuls(row, config.device, config.precision, device, folder, search)
    clocks = [mhz for sample in samples if (mhz := sample.get("clock_mhz"))]
    if clocks:
        row.clock_mhz = fmean(clocks)
    row.measured_s = time.perf_counter() - began
    row.probes = packed([*states, probe()], torch.get_num_threads())
    row.probe_s = probe.spent_s
    return Measured(row, [{"replicate": config.replicate, **sample} for sample in samples])


def _matmuls(
    row: CeilingRow,
    device_config: DeviceConfig,
    precision: PrecisionConfig,
    device: torch.device,
    folder: Path,
    search: Search,
) -> list[MatmulSample]:
    """Sets the row's best matmul and peaks; returns the samples of the search. Empty for a format
    that the device only emulates."""
    effective = use_precision(precision, device)
    reason = emulated(effective, device)
    if reason and effective not in device_config.peak_tflop_s:
        row.emulated = True
        row.message = cell_of(Said("emulated_by", why=reason, precision=effective))
        return []
    samples = sweep_matmuls(effective, device, search, _best_of_first_process(folder))
    peak = peak_of(device, torch.get_num_threads(), effective, device_config)
    row.emulated = False
    fastest = fastest_matmul(samples, device)
    row.measured_with, row.measured_shape, row.measured_tflop_s, row.burst_tflop_s = fastest
    row.computed_tflop_s = peak.spec
    row.max_clock_tflop_s = peak.max_clock
    row.datasheet_tflop_s = peak.datasheet
    row.computed_clock_mhz = peak.spec_clock_mhz
    row.computed_formula = peak.formula or None
    row.computed_source = peak.source or None
    row.message = cell_of(peak.reason)
    return samples


def _best_of_first_process(folder: Path) -> tuple[str, str] | None:
    """Library and shape of the best matmul that the run's first process found, so that later
    processes repeat only that. None if there is none yet."""
    first = base_name(folder.name)
    if first == folder.name:
        return None
    try:
        (row,) = read_csv(folder.with_name(first) / "row.csv")
    except (OSError, UnreadableError, ValueError):
        return None
    library = row.get("measured_with")
    shape = row.get("measured_shape")
    return (library, shape) if library and shape else None


def _memory(row: CeilingRow, device: torch.device, search: Search) -> list[TriadSample]:
    """Sets the row's bandwidths in GB/s; returns the samples of the search."""
    samples = sweep_triad(device, search)
    row.measured_gb_s = best_bandwidth(samples, device)
    row.measured_shape = str(samples[0]["elements"])
    if is_gpu(device):
        row.computed_gb_s = memory_peak_gb_s(properties_of(device))
    if row.computed_gb_s is not None:
        row.computed_formula = "memory clock × bus width × 2"
        row.computed_source = "NVML nvmlDeviceGetMaxClockInfo, nvmlDeviceGetMemoryBusWidth"
    else:
        row.message = cell_of(Said("no_bus_width"))
    return samples
