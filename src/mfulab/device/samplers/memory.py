"""Peak memory of a stretch of work: a GPU's allocator's, or the process's resident set on a CPU."""

from typing import TYPE_CHECKING

import psutil

from mfulab.core.said import Said
from mfulab.device import is_gpu, system, vendors
from mfulab.device.samplers.reading import Reading
from mfulab.device.vendors import Memory

if TYPE_CHECKING:
    import torch


def peak_memory(device: "torch.device") -> Memory:
    """The most memory held on a torch.device from now on, beyond what is held now."""
    if is_gpu(device):
        return vendors.of_device(device).memory(device)
    return ResidentMemory()


class ResidentMemory(Memory):
    """Peak of the process's resident set, beyond what it was when this was made."""

    def __init__(self) -> None:
        self.forget()
        self._baseline, self._files = psutil.Process().memory_info().rss, system.file_pages_bytes()

    def forget(self) -> None:
        system.write(
            "proc/self/clear_refs", "5"
        )  # elsewhere than on Linux the peak is the whole life's

    def read(self) -> Reading:
        peak = system.peak_memory_bytes()
        if peak is None:
            return Reading(None, "B", "peak RSS", reason=Said("no_peak_rss"))
        source = "peak RSS above the RSS before the model was built, without pages of files"
        # A step's first calls bring in its libraries' code: 80 MB of torch's for a small
        # convolutional network.
        grown = peak - max(0, system.file_pages_bytes() - self._files) - self._baseline
        if grown > 0:
            return Reading(grown, "B", source)
        return Reading(None, "B", source, reason=Said("memory_reused"))
