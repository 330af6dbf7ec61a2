"""Computed peaks of the device at hand, without torch: the first GPU that CUDA would see, else the CPU."""

from mfulab.device import cpu, identity
from mfulab.device.cpu_peaks import cpu_peak
from mfulab.device.peaks import Peak, gpu_peak


def name_at_hand() -> str:
    """The name of the device that `peak_at_hand` speaks of."""
    gpus = identity.cuda_devices()
    return gpus[0].name if gpus else f"{cpu.cpu().name} ({cpu.usable_cores()} cores)"


def peak_at_hand(precision: str) -> Peak:
    """The computed dense peak of the device at hand in TFLOP/s; None with the reason where it is unknown."""
    gpus = identity.cuda_devices()
    if not gpus:
        return cpu_peak(cpu.cpu(), cpu.usable_cores(), precision)
    from mfulab.device.gpu import properties_by_nvml

    return gpu_peak(properties_by_nvml(gpus[0]), precision)
