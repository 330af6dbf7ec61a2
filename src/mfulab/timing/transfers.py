"""Times copies of tensors to a GPU and back, from pageable and pinned memory."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from mfulab.device import synchronise

CALLS = 5  # timed, after a first one that is not


def time_transfers(inputs: Sequence[torch.Tensor], output: torch.Tensor) -> dict[str, float]:
    """Median seconds, by column, of copying `inputs` to the device and `output` back, into memory
    that is already allocated."""
    device = output.device
    pageable = [tensor.cpu() for tensor in inputs]
    pinned = [tensor.pin_memory() for tensor in pageable]
    targets = [torch.empty_like(tensor) for tensor in inputs]
    back = torch.empty(output.shape, dtype=output.dtype)
    back_pinned = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)

    def load(sources: Sequence[torch.Tensor], non_blocking: bool) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=non_blocking)

    calls: dict[str, Callable[[], object]] = {
        "host_to_device_s": lambda: load(pageable, False),
        "device_to_host_s": lambda: back.copy_(output),
        "host_to_device_pinned_s": lambda: load(pinned, True),
        "device_to_host_pinned_s": lambda: back_pinned.copy_(output, non_blocking=True),
    }
    return {column: median_wall_s(call, device, CALLS) for column, call in calls.items()}


def median_wall_s(
    call: Callable[[], object], device: torch.device | str, least: int, time_s: float = 0.0
) -> float:
    """Median wall seconds of a call, including waiting for the device. Makes at least `least` calls
    and continues for `time_s`. The first call is not counted."""
    times: list[float] = []
    began = time.perf_counter()
    while len(times) <= least or time.perf_counter() - began < time_s:
        synchronise(device)
        started = time.perf_counter()
        call()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
