"""Clocks that mark the ends of steps: on the host, or on a GPU without blocking the host."""

import itertools
import time
from typing import TYPE_CHECKING, Any

from mfulab.device import is_gpu, named, synchronise

if TYPE_CHECKING:
    import torch


class HostClock:
    """Clock for devices that have finished a call when it returns: the CPU."""

    name = "host clock"
    # Shortest time between marks: otherwise tiny steps would create hundreds of thousands of marks.
    resolution_s = 1e-4

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def synchronise(self) -> None:
        """Waits for the device. On the CPU nothing is pending."""

    def mark(self) -> None:
        """Records a time stamp in the order of the device's work."""
        self._marks.append(time.perf_counter())

    def wait_until_near_end(self, marks: int) -> None:
        """Waits until at most `marks` marks are still pending on the device. On the CPU none
        are."""

    def intervals(self) -> list[float]:
        """Returns the seconds between consecutive marks and clears the marks."""
        marks = self._marks
        self._marks = []
        return [after - before for before, after in itertools.pairwise(marks)]


class EventClock(HostClock):
    """Events on the current stream of a GPU. Intervals include gaps in which the GPU waited for
    work."""

    # a hundred times the cost of a mark: recording an event takes the host some microseconds
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
        # Without a stream, the event would be recorded on the process's current device.
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
    """Returns the clock for a torch.device."""
    return EventClock(device) if is_gpu(device) else HostClock()
