"""Clocks that mark the ends of steps: on the host, and on the GPU without making the host wait."""

import itertools
import time
from typing import Any, Protocol

from mfulab.device import is_gpu, synchronise


class Clock(Protocol):
    """`mark` notes a moment in the device's own order of work; `intervals` gives the seconds between marks, once."""

    # Shortest time between marks at which marking stays under a hundredth of it.
    resolution_s: float
    name: str

    def synchronise(self) -> None: ...
    def mark(self) -> None: ...
    def wait_until_near_end(self, marks: int) -> None: ...
    def intervals(self) -> list[float]: ...


class HostClock:
    """Clock of devices that have finished a call when it returns: the CPU."""

    name = "host clock"
    resolution_s = 1e-4  # tiny steps would otherwise make samples by the hundred thousand

    def __init__(self) -> None:
        self._marks: list[float] = []

    def synchronise(self) -> None:
        """Does nothing: the host has finished when it asks."""

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def wait_until_near_end(self, marks: int) -> None:
        """Nothing is in flight."""

    def intervals(self) -> list[float]:
        marks, self._marks = self._marks, []
        return [after - before for before, after in itertools.pairwise(marks)]


class EventClock:
    """Events on a GPU's current stream: the time between two includes the gaps in which it waited for work."""

    resolution_s = 1e-3  # recording an event costs the host some microseconds

    def __init__(self, device: Any) -> None:
        import torch

        self._torch, self._device = torch.get_device_module(device), device
        self.name = f"{device.type.upper()} events"
        self._events: list[Any] = []

    def synchronise(self) -> None:
        synchronise(self._device)

    def mark(self) -> None:
        event = self._torch.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def wait_until_near_end(self, marks: int) -> None:
        """Waits until the device has that many marks before it."""
        self._events[-1 - marks].synchronize()

    def intervals(self) -> list[float]:
        self.synchronise()
        events, self._events = self._events, []
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]


def clock_for(device: Any) -> Clock:
    """The clock of a torch.device."""
    return EventClock(device) if is_gpu(device) else HostClock()
