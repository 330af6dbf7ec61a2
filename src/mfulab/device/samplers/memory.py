"""Peak memory of a stretch of work: a GPU's allocator's, or the process's resident set on a CPU."""

from typing import Any

import psutil

from mfulab.device import is_gpu, system, vendors
from mfulab.device.samplers.reading import Reading


class PeakMemory:
    """The most memory held since it was made, beyond what was held then."""

    def __init__(self, device: Any) -> None:
        self._gpu = vendors.of_device(device).memory(device) if is_gpu(device) else None
        if self._gpu is None:
            self.forget()
            self._baseline, self._files = psutil.Process().memory_info().rss, system.file_pages_bytes()

    def forget(self) -> None:
        """Leaves out what was held in between and is no longer: the peak is from now on."""
        if self._gpu is not None:
            self._gpu.forget()
        else:
            system.forget_peak_memory()

    def read(self) -> Reading:
        """The peak in bytes so far."""
        if self._gpu is not None:
            return self._gpu.read()  # type: ignore[no-any-return]
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
