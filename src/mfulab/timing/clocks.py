"""Clocks that mark the ends of steps: on the host, and on the GPU without making the host wait."""

import itertools
import time
from typing import TYPE_CHECKING, Any

from mfulab.device import is_gpu, named, synchronise

if TYPE_CHECKING:
    import torch


class HostClock:
    """Clock of devices that have finished a call when it returns: the CPU."""

    name = "host clock"
    # Shortest time between marks: tiny steps would otherwise make samples by the hundred thousand.
    resolution_s = 1e-4

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def synchronise(self) -> None:
        """Waits for the device; the host has finished when it asks."""

    def mark(self) -> None:
        """Notes a moment in the device's own order of work."""
        self._marks.append(time.perf_counter())

    def wait_until_near_end(self, marks: int) -> None:
        """Waits until the device has that many marks before it; nothing is in flight on the
        host."""

    def intervals(self) -> list[float]:
        """Seconds between the marks, once."""
        marks = self._marks
        self._marks = []
        return [after - before for before, after in itertools.pairwise(marks)]


class EventClock(HostClock):
    """Events on the current stream of one GPU: the time between two includes the gaps in which it
    waited for work."""

    # a hundred times what marking takes: recording an event costs the host some microseconds
    resolution_s = 1e-3

    def __init__(self, device: "torch.device") -> None:
        import torch

        super().__init__()
        self._torch = torch.get_device_module(device)
        self._device = device
        self.name = f"{device.type.upper()} events"

    def synchronise(self) -> None:
        synchronise(self._device)

    def mark(self) -> None:
        event = self._torch.Event(enable_timing=True)
        # Without a stream it would lie on that of the process's current device, whichever is
        # watched.
        event.record(*(self._torch.current_stream(device) for device in named(self._device)))
        self._marks.append(event)

    def wait_until_near_end(self, marks: int) -> None:
        self._marks[-1 - marks].synchronize()

    def intervals(self) -> list[float]:
        self.synchronise()
        events = self._marks
        self._marks = []
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]


Clock = HostClock


def clock_for(device: "torch.device") -> Clock:
    """The clock of a torch.device."""
    return EventClock(device) if is_gpu(device) else HostClock()
