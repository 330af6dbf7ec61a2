"""The traced pass: which operators a step calls, how often, and where its time and memory go."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Row = dict[str, object]
COLUMNS = (
    *("operator", "input_shapes", "calls", "self_cpu_time_s", "self_device_time_s"),
    *("flops", "self_cpu_memory_bytes", "self_device_memory_bytes"),
)


@dataclass(frozen=True)
class TracedPass:
    """`steps` steps under torch.profiler; slower than measured steps, so its times serve as shares."""

    profiler: Any
    steps: int


def trace_steps(step: Callable[[], object], device: torch.device, steps: int) -> TracedPass:
    """Runs `steps` steps under torch.profiler with shapes, memory and FLOPs, after one that starts the profiler up."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=activities, record_shapes=True, profile_memory=True, with_flops=True) as profiler:
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return TracedPass(profiler, steps)


def operator_table(traced: TracedPass) -> list[Row]:
    """A row for each operator and input shapes, most self time first; times, FLOPs and bytes of all traced steps.

    FLOPs are torch.profiler's own formulas (products, convolutions, element-wise sums), empty where it has none.
    """
    rows: list[Row] = []
    for event in traced.profiler.key_averages(group_by_input_shape=True):
        rows.append(
            {
                "operator": event.key,
                "input_shapes": str(event.input_shapes) if event.input_shapes else None,
                "calls": event.count,
                "self_cpu_time_s": event.self_cpu_time_total / 1e6,
                "self_device_time_s": event.self_device_time_total / 1e6,
                "flops": event.flops or None,
                "self_cpu_memory_bytes": event.self_cpu_memory_usage,
                "self_device_memory_bytes": event.self_device_memory_usage,
            }
        )
    return sorted(rows, key=lambda row: -float(str(row["self_device_time_s"])) - float(str(row["self_cpu_time_s"])))
