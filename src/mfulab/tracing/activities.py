"""Activities of torch.profiler: which of them records the kernels of a device."""

import re

from mfulab.core.said import Said

# Counters of CUPTI's range profiler, which records no kernel.
RANGE = "cuda_profiler_range"
# The activity that records the kernels of a device, by its name, and the library behind it.
_ACTIVITIES = (
    (r"amd|radeon|instinct|gfx\d", "ProfilerActivity.CUDA", "roctracer, rocprofiler-sdk"),
    (r"intel|\barc\b|data center gpu", "ProfilerActivity.XPU", "Intel PTI"),
    (r"gaudi|habana|\bhpu", "ProfilerActivity.HPU", "Habana profiler"),
    (r"mtia", "ProfilerActivity.MTIA", "MTIA profiler"),
    (r"nvidia|geforce|tesla|quadro|\b[ABHLV]\d{2,3}\b", "ProfilerActivity.CUDA", "CUPTI"),
    (r"ascend|\bnpu", "torch_npu.profiler.ProfilerActivity.NPU", "CANN msprof"),
)


def recording_advice(device: str) -> Said:
    """Advice on recording the kernels of a device: the activity to ask for, and the library behind it."""
    for pattern, activity, library in _ACTIVITIES:
        if re.search(pattern, device, re.IGNORECASE):
            return Said("record_with", {"activity": activity, "library": library})
    return Said("record_with_its_own")
