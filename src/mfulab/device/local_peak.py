"""Computed peaks of local devices. Kept separate, so that an edited table of peaks re-runs only
what uses peaks. A CPU's peak is physical cores × clock × vector units × lanes × 2. Virtual machines
hide the turbo clock, so one thread may exceed the result by a fifth. A CPU's MFU is therefore
reported against the measured ceiling."""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import DeviceConfig
from mfulab.core.said import Said, as_told, of_source
from mfulab.device import cpu, identity, is_gpu, vendors
from mfulab.device.emulation import CPU_UNITS, emulated_by_cpu, usable
from mfulab.device.gpu import properties_of
from mfulab.device.peaks import Peak, gpu_peak, to_be_given

if TYPE_CHECKING:
    import torch

_BITS = {"fp64": 64, "fp32": 32}  # width of an element in a vector


def local_name() -> str:
    """Name of the device that `local_peak` describes."""
    try:
        gpus = identity.gpus()
    except vendors.NoDeviceError:
        return "one of several GPUs"
    if gpus:
        return gpus[0].name
    return f"{cpu.cpu().name} ({cpu.usable_cores()} cores)"


def local_peak(precision: str) -> Peak:
    """Computed dense peak in TFLOP/s of the first visible GPU, or of the CPU if there is no GPU."""
    try:
        gpus = identity.gpus()
    except vendors.NoDeviceError as error:
        return Peak(None, reason=as_told(error))
    if gpus:
        gpu = gpus[0]
        properties = vendors.of(gpu.uuid).properties(gpu.uuid, gpu.name)
        return gpu_peak(properties, precision)
    return cpu_peak(cpu.cpu(), cpu.usable_cores(), precision)


def peak_of(device: "torch.device", threads: int, precision: str, config: DeviceConfig) -> Peak:
    """Computed peak of a torch.device in an effective precision. A CPU's counts only cores that
    `threads` can fill. A peak from the config takes precedence."""
    if tflop_s := config.peak_tflop_s.get(precision):  # the user's value takes precedence
        return Peak(tflop_s, formula=f"{tflop_s} TFLOP/s", source="device.peak_tflop_s")
    if is_gpu(device):
        return gpu_peak(properties_of(device), precision)
    return cpu_peak(cpu.cpu(), min(threads, cpu.usable_cores()), precision)


def cpu_peak(chip: cpu.Cpu, cores: int, precision: str) -> Peak:
    """Computed peak of `cores` physical cores in TFLOP/s (TOP/s for int8). `spec` is None, with a
    reason, if unknown."""
    if precision in ("tf32", "fp8", "fp4"):
        return Peak(None, reason=Said("format_of_gpus", precision=precision))
    if chip.clock_mhz is None:
        return Peak(None, reason=to_be_given(Said("no_clock_of", chip=chip.name), precision))
    row = next((row for row in _cores() if _is_of(row, chip)), None)
    if row is None:
        unknown = Said("no_vector_units_of", chip=chip.name)
        return Peak(None, reason=to_be_given(unknown, precision))
    try:
        fma, words = _fma_per_clock(chip, row, precision)
    except UnsupportedError as error:
        return Peak(None, reason=of_source(chip.name, error.said))
    peak = cores * chip.clock_mhz * fma * 2 * 1e-6
    return Peak(
        spec=peak,
        formula=f"{cores} cores × {chip.clock_mhz:.0f} MHz × {words} × 2",
        source=f"cores: affinity and cgroup; clock: {chip.clock_source}; units: {row['source']}",
        spec_clock_mhz=chip.clock_mhz,
    )


@cache
def _cores() -> list[dict[str, str]]:
    """Table of vector units of CPU cores, by vendor, family and model."""
    path = Path(__file__).with_name("fma_per_clock_per_core.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _fma_per_clock(chip: cpu.Cpu, row: Mapping[str, str], precision: str) -> tuple[int, str]:
    units = int(row["units"])
    width = int(row["vector_bits"])
    if precision not in _BITS and precision not in CPU_UNITS:
        raise UnsupportedError(Said("no_peak_defined", precision=precision))
    flags = usable(chip.flags)
    if reason := emulated_by_cpu(precision, flags):
        raise UnsupportedError(Said("converts", why=reason))
    rates = CPU_UNITS.get(precision, {})
    flag = next((flag for flag in rates if flag in flags), "")
    rate = rates.get(flag, 1)
    if rate is None:
        raise UnsupportedError(Said("no_rate_of", flag=flag))
    if flag.startswith("amx"):
        return rate, f"{rate} multiply-adds (AMX tile)"
    lanes = width // _BITS.get(precision, 32) * rate
    return units * lanes, f"{units} units × {lanes} lanes ({width} bit)"


def _is_of(row: Mapping[str, str], chip: cpu.Cpu) -> bool:
    if row["vendor"] != chip.vendor or int(row["family"]) != chip.family:
        return False
    if row["flag"] not in chip.flags or chip.model is None:
        return False
    low, _, high = row["models"].partition("-")
    return int(low) <= chip.model <= int(high or low)
