"""Computed peaks of local devices; apart, so that an edited table of peaks re-runs only what holds peaks."""

from typing import Any

from mfulab.core.groups import DeviceConfig
from mfulab.device import cpu, identity, is_gpu, vendors
from mfulab.device.cpu_peaks import cpu_peak
from mfulab.device.gpu import properties_of
from mfulab.device.peaks import Peak, gpu_peak


def local_name() -> str:
    """The name of the device that `local_peak` is of."""
    gpus = identity.cuda_devices()
    return gpus[0].name if gpus else f"{cpu.cpu().name} ({cpu.usable_cores()} cores)"


def local_peak(precision: str) -> Peak:
    """The computed dense peak in TFLOP/s of the first GPU that CUDA would see, else of the CPU; without torch."""
    if gpus := identity.cuda_devices():
        return gpu_peak(vendors.of(gpus[0].uuid).properties(gpus[0].uuid, gpus[0].name), precision)
    return cpu_peak(cpu.cpu(), cpu.usable_cores(), precision)


def peak_of(device: Any, threads: int, precision: str, config: DeviceConfig) -> Peak:
    """The computed peak of a torch.device in an effective precision; a CPU's with the cores that `threads` can fill."""
    if is_gpu(device):
        return gpu_peak(properties_of(device), precision, config.peak_tflop_s)
    return cpu_peak(cpu.cpu(), min(threads, cpu.usable_cores()), precision, config.peak_tflop_s)
