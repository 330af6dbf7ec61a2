"""Traffic between the processes of one job, as the network interface counts it."""

import os
from collections.abc import Callable

import psutil
import torch.distributed as dist

from mfulab.device.samplers.reading import Reading

LOOPBACK = "lo"
INTERFACE = "GLOO_SOCKET_IFNAME"  # gloo's own variable
PASSES = 3  # over which the least traffic is taken: other programs only add to it


def sent_bytes(step: Callable[[], object], steps: int) -> Reading:
    """Bytes that each process sends in a step, by the loopback interface's count for all processes."""
    source = f"counter of the interface {LOOPBACK}, {steps} steps"
    if dist.get_backend() != "gloo" or os.environ.get(INTERFACE) != LOOPBACK:
        return Reading(None, "B", source, reason="only gloo's traffic over the loopback is counted")
    found = []
    for _ in range(PASSES):
        dist.barrier()
        before = psutil.net_io_counters(pernic=True)[LOOPBACK].bytes_sent
        for _ in range(steps):
            step()
        dist.barrier()
        found.append(psutil.net_io_counters(pernic=True)[LOOPBACK].bytes_sent - before)
    return Reading(min(found) / steps / dist.get_world_size(), "B", source)
