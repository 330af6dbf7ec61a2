"""The computed peak of the device at hand; apart, so that an edited table of peaks re-runs only what holds peaks."""

import torch

from mfulab.core.groups import DeviceConfig
from mfulab.device import cpu
from mfulab.device.cpu_peaks import cpu_peak
from mfulab.device.gpu import properties_of
from mfulab.device.peaks import Peak, gpu_peak


def peak_of(device: torch.device, threads: int, precision: str, config: DeviceConfig) -> Peak:
    """The computed peak of `device` in an effective precision; a CPU's with as many cores as `threads` can fill."""
    if device.type == "cuda":
        return gpu_peak(properties_of(device), precision, config.peak_tflop_s)
    return cpu_peak(cpu.cpu(), min(threads, cpu.usable_cores()), precision, config.peak_tflop_s)
