"""Peak memory over an interval: a GPU's from torch's allocator, a CPU's from the process's resident
set."""

from typing import TYPE_CHECKING

import psutil

from mfulab.core.said import Said
from mfulab.device import is_gpu, system, vendors
from mfulab.device.samplers.reading import Reading
from mfulab.device.vendors import Memory

if TYPE_CHECKING:
    import torch


def peak_memory(device: "torch.device") -> Memory:
    """Starts to track the peak memory of a torch.device, beyond what is allocated now."""
    if is_gpu(device):
        return vendors.of_device(device).memory(device)
    return ResidentMemory()


class ResidentMemory(Memory):
    """Peak resident memory of the process, beyond its resident memory when this object was
    created."""

    def __init__(self) -> None:
        self.forget()
        self._baseline, self._files = psutil.Process().memory_info().rss, system.file_pages_bytes()

    def forget(self) -> None:
        # resets VmHWM; on other systems the peak covers the whole life of the process
        system.write("proc/self/clear_refs", "5")

    def read(self) -> Reading:
        peak = system.peak_memory_bytes()
        if peak is None:
            return Reading(None, "B", "peak RSS", reason=Said("no_peak_rss"))
        source = "peak RSS above the RSS before the model was built, without pages of files"
        # A step's first calls page in library code: 80 MB of torch for a small convolutional
        # network.
        grown = peak - max(0, system.file_pages_bytes() - self._files) - self._baseline
        if grown > 0:
            return Reading(grown, "B", source)
        return Reading(None, "B", source, reason=Said("memory_reused"))
