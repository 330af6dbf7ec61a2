"""A trace as columns: what the device executed, which operators the host called, and the launches between them.

Times are whole nanoseconds of the trace's clock.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

COMPUTE, COMMUNICATION, COPY = range(3)
KINDS = ("compute", "communication", "copy")


@dataclass(frozen=True)
class Call:
    """One operator's arguments as recorded: shapes, types, values of scalars, FLOPs."""

    name: str
    shapes: tuple[Any, ...]
    types: tuple[Any, ...]
    values: tuple[Any, ...]
    recorded_flops: int | None = None


@dataclass
class Activities:
    """Work that devices executed, a column each; `name` indexes `Recording.names`."""

    begin: Times
    end: Times
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int64]
    device: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    correlation: npt.NDArray[np.int64]
    external: npt.NDArray[np.int64]
    occupancy: npt.NDArray[np.float64]
    blocks: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begin)


@dataclass
class HostCalls:
    """Operators and annotations on the host; `forward` marks those called with gradients enabled."""

    begin: Times
    end: Times
    name: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    external: npt.NDArray[np.int64]
    forward: npt.NDArray[np.bool_]
    annotation: npt.NDArray[np.bool_]
    calls: dict[int, Call]

    def __len__(self) -> int:
        return len(self.begin)


@dataclass
class Launches:
    """Calls of the runtime that have a correlation with what the device executed."""

    begin: Times
    end: Times
    thread: npt.NDArray[np.int64]
    correlation: npt.NDArray[np.int64]
    graph: npt.NDArray[np.bool_]


@dataclass
class Recording:
    """One trace file. `properties` are its `deviceProperties`, `distributed` its `distributedInfo`."""

    path: Path
    names: list[str]
    activities: Activities
    host: HostCalls
    launches: Launches
    metadata: dict[str, Any]
    events: int

    @property
    def properties(self) -> list[dict[str, Any]]:
        found = self.metadata.get("deviceProperties")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    @property
    def distributed(self) -> dict[str, Any]:
        found = self.metadata.get("distributedInfo")
        return found if isinstance(found, dict) else {}

    def device_properties(self, ordinal: int | None = None) -> dict[str, Any]:
        """Properties of a device by its number, else of that with most activities; empty where they are not told."""
        if not len(self.activities) or not self.properties:
            return {}
        if ordinal is None:
            numbers, counts = np.unique(self.activities.device, return_counts=True)
            ordinal = int(numbers[counts.argmax()])
        exact = [one for one in self.properties if one.get("id") == ordinal]
        # ROCm numbers a process's devices after those of the machine; of like devices the first will do.
        alike = {one.get("name") for one in self.properties}
        return exact[0] if exact else self.properties[0] if len(alike) == 1 else {}


def launch_delays(recording: Recording, device: int | None = None) -> Times:
    """Nanoseconds from each launch's call to the begin of what it launched on a device, or on any, where linked."""
    found = launch_of(recording)
    linked = found >= 0
    if device is not None:
        linked &= recording.activities.device == device
    return recording.activities.begin[linked] - recording.launches.begin[found[linked]]


def launch_of(recording: Recording) -> npt.NDArray[np.int64]:
    """The index of the launch of each activity, by correlation; -1 without one."""
    launches, wanted = recording.launches, recording.activities.correlation
    if not len(launches.correlation):
        return np.full(len(wanted), -1)
    order = np.argsort(launches.correlation, kind="stable")
    places = np.searchsorted(launches.correlation[order], wanted).clip(max=len(order) - 1)
    found = order[places]
    return np.where((launches.correlation[found] == wanted) & (wanted > 0), found, -1)
