"""Peak memory of a stretch of work: the CUDA allocator's, or the process's resident set on a CPU."""

from typing import Any

import psutil
import torch

from mfulab.device import APPLE, GPU, is_gpu, system
from mfulab.device.samplers.reading import Reading


class PeakMemory:
    """The most memory held since it was made, beyond what was held then."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.forget()
        if device.type == APPLE:
            return
        if is_gpu(device):
            self._baseline = torch.cuda.memory_allocated(device)
        else:
            self._baseline, self._files = psutil.Process().memory_info().rss, system.file_pages_bytes()

    def forget(self) -> None:
        """Leaves out what was held in between and is no longer: the peak is from now on."""
        if self._device.type == GPU:
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            system.forget_peak_memory()

    def read(self) -> Reading:
        """The peak in bytes so far."""
        if self._device.type == APPLE:
            held = torch.mps.driver_allocated_memory()
            return Reading(None, "B", "torch.mps", reason=f"it counts no peak; Metal held {held} bytes at the end")
        if is_gpu(self._device):
            held = torch.cuda.max_memory_allocated(self._device) - self._baseline
            return Reading(held, "B", "CUDA caching allocator, peak allocated")
        peak = system.peak_memory_bytes()
        if peak is None:
            return Reading(None, "B", "peak RSS", reason="this system does not report the peak resident set")
        source = "peak RSS above the RSS before the model was built, without pages of files"
        # A step's first calls bring in its libraries' code: 80 MB of torch's for a small convolutional network.
        peak -= max(0, system.file_pages_bytes() - self._files)
        if peak <= self._baseline:
            reason = "the process grew by nothing: it reused memory that it held before"
            return Reading(None, "B", source, reason=reason)
        return Reading(peak - self._baseline, "B", source)
