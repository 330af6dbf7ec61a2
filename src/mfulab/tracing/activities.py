"""Selects the torch.profiler activity that records the kernels of a device."""

import re

from mfulab.core.said import Said

# Category of CUPTI's range profiler, which records counters and no kernels.
RANGE = "cuda_profiler_range"
# Pattern of a device's name, the activity that records its kernels, and the library behind it.
_ACTIVITIES = (
    (r"amd|radeon|instinct|gfx\d", "ProfilerActivity.CUDA", "roctracer, rocprofiler-sdk"),
    (r"intel|\barc\b|data center gpu", "ProfilerActivity.XPU", "Intel PTI"),
    (r"gaudi|habana|\bhpu", "ProfilerActivity.HPU", "Habana profiler"),
    (r"mtia", "ProfilerActivity.MTIA", "MTIA profiler"),
    (r"nvidia|geforce|tesla|quadro|\b[ABHLV]\d{2,3}\b", "ProfilerActivity.CUDA", "CUPTI"),
    (r"ascend|\bnpu", "torch_npu.profiler.ProfilerActivity.NPU", "CANN msprof"),
)


def recording_advice(device: str) -> Said:
    """Advice on recording a device's kernels, chosen by the device's name: the profiler activity to
    request, and the library behind it."""
    for pattern, activity, library in _ACTIVITIES:
        if re.search(pattern, device, re.IGNORECASE):
            return Said("record_with", activity=activity, library=library)
    return Said("record_with_its_own")
