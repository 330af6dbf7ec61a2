"""A trace as columns: what the device executed, which operators the host called, and the launches between them.

Times are whole nanoseconds of the trace's clock. A reader of a trace format gives its events to a `Recorder`; all that
is computed of them starts from the `Recording` that this makes.
"""

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said

Times = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]
Collective = tuple[str, int, int]  # its kind, the bytes of its larger side, and how many processes take part

CLOCKS_APART_NS = 1_000_000  # a kernel that begins so long before its launch was timed by another clock
MODULE = "nn.Module: "  # begins the name of a module's range, as torch.profiler writes it: nn.Module: NAME_NUMBER
COMPUTE, COMMUNICATION, COPY = range(3)
KINDS = ("compute", "communication", "copy")
_COMMUNICATION = ("nccl", "rccl", "mscclpp", "nvshmem", "deep_ep", "void deep_ep")
_STEP = re.compile(
    r"(?:profilerstep|(?:train(?:ing)?|forward)?[ _]?(?:step|iter(?:ation)?))[ _#:=]*(\d+)", re.IGNORECASE
)


def kind_of(kernel: str) -> int:
    """`COMMUNICATION` or `COMPUTE`, by a kernel's name."""
    return COMMUNICATION if kernel.lower().startswith(_COMMUNICATION) else COMPUTE


def step_mark(name: str) -> str | None:
    """The mark of one step as torch.profiler writes it, for a range that a user called step 12, iteration_12, ….."""
    found = _STEP.fullmatch(name)
    return f"ProfilerStep#{int(found[1])}" if found else None


class TraceError(UnsupportedError):
    """A file that cannot be read as a trace; the message says why and what to do."""


@dataclass(frozen=True)
class Call:
    """One operator's arguments as recorded: shapes, types, values of scalars."""

    name: str
    shapes: tuple[Any, ...]
    types: tuple[Any, ...]
    values: tuple[Any, ...]


@dataclass
class Activities:
    """Work that devices executed, a column each; `name` indexes `Recording.names`."""

    begin: Times
    end: Times
    kind: Indices
    name: Indices
    device: Indices
    stream: Indices
    correlation: Indices
    external: Indices
    blocks: Indices

    def __len__(self) -> int:
        return len(self.begin)


@dataclass
class HostCalls:
    """Operators and annotations on the host."""

    begin: Times
    end: Times
    name: Indices
    thread: Indices
    external: Indices
    forward: npt.NDArray[np.bool_]  # called with gradients enabled
    annotation: npt.NDArray[np.bool_]
    sequence: Indices  # autograd's number of an operator and its backward pass, -1 without one
    calls: dict[int, Call]

    def __len__(self) -> int:
        return len(self.begin)


@dataclass
class Launches:
    """Calls of the runtime, with a correlation to what the device executed."""

    begin: Times
    end: Times
    thread: Indices
    correlation: Indices
    name: Indices  # index of `Recording.names`
    kernel: Indices  # the name of what was launched, -1 where the trace does not say


@dataclass
class Recording:
    """One trace file."""

    path: Path
    names: list[str]
    activities: Activities
    host: HostCalls
    launches: Launches
    metadata: dict[str, Any]
    events: int
    collectives: list[tuple[int, int, int, Collective]] = field(default_factory=list)  # of each: begin, end, device
    trimmed: dict[int, tuple[int, int]] = field(default_factory=dict)  # of a device: how many overlapped, ns cut
    owned: dict[int, int] = field(default_factory=dict)  # kernels of replayed graphs: the call that another trace has
    notes: list[Said] = field(default_factory=list)

    def named(self, test: Callable[[str], Any]) -> npt.NDArray[np.bool_]:
        """Marks the names that pass a test, one place each."""
        return np.array([bool(test(name)) for name in self.names], bool)

    @property
    def of_module(self) -> npt.NDArray[np.bool_]:
        """Marks the host calls that are ranges of modules, in which operators are not sought."""
        return self.named(lambda name: name.startswith(MODULE))[self.host.name]

    @property
    def properties(self) -> list[dict[str, Any]]:
        found = self.metadata.get("deviceProperties")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def distributed(self, name: str) -> int | None:
        """A whole number of the file's `distributedInfo`: `rank` or `world_size`."""
        found = self.metadata.get("distributedInfo")
        value = found.get(name) if isinstance(found, dict) else None
        return value if isinstance(value, int) else None

    def device_properties(self, ordinal: int | None = None) -> dict[str, Any]:
        """Properties of a device by its number, else of that with most activities; empty where they are not told."""
        if not len(self.activities) or not self.properties:
            return {}
        if ordinal is None:
            numbers, counts = np.unique(self.activities.device, return_counts=True)
            ordinal = int(numbers[counts.argmax()])
        # ROCm numbers a process's devices after those of the machine; of like devices the first will do.
        alike = self.properties[0] if len({one.get("name") for one in self.properties}) == 1 else {}
        return next((one for one in self.properties if one.get("id") == ordinal), alike)


class Recorder:
    """Makes the columns of a `Recording`, event by event; -1 stands for a number that an event does not hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[str, int] = {}
        self._threads: dict[Any, int] = {}
        self.activities, self._host, self._launches = array("q"), array("q"), array("q")
        self.collectives: list[tuple[int, int, int, Collective]] = []
        self._calls: dict[int, Call] = {}
        self._shared: dict[str, Call] = {}

    def __len__(self) -> int:
        return len(self.activities) + len(self._host)

    def activity(
        self, span: tuple[int, int], kind: int, name: str, device: int, stream: int, correlation: int, external: int,
        blocks: int,
    ) -> None:  # fmt: skip
        """Adds what a device executed: `kind` of `KINDS`, and the blocks of its grid, 0 where they are not known."""
        self.activities.extend((*span, kind, self._name(name), device, stream, correlation, external, blocks))

    def host_call(
        self, span: tuple[int, int], name: str, thread: Any, external: int, forward: bool, annotation: bool,
        call: Call | None = None, sequence: int = -1,
    ) -> None:  # fmt: skip
        """Adds an operator or annotation; `call` holds its arguments, where they are recorded."""
        if call is not None:  # equal ones are kept once
            self._calls[len(self._host) // 8] = self._shared.setdefault(str(call), call)
        number = self._threads.setdefault(thread, len(self._threads))
        self._host.extend((*span, self._name(name), number, external, forward, annotation, sequence))

    def launch(self, span: tuple[int, int], thread: Any, correlation: int, name: str, kernel: str = "") -> None:
        """Adds a call of the runtime, with the name of the kernel that it launches where that is known."""
        launched = self._name(kernel) if kernel else -1
        number = self._threads.setdefault(thread, len(self._threads))
        self._launches.extend((*span, number, correlation, self._name(name), launched))

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def done(self, metadata: dict[str, Any], events: int | None = None) -> "Recording":
        """The recording of all events so far, which are `events` of the file, else those that were added.

        Raises TraceError: kernels begin before they were launched, so another clock than the host's timed them.
        """
        activities, host, launches = map(_columns, (self.activities, self._host, self._launches), (9, 8, 6))
        *spans, forward, annotation, sequence = host
        recording = Recording(
            self.path, list(self._names), Activities(*activities),
            HostCalls(*[*spans, forward.astype(bool), annotation.astype(bool), sequence, self._calls]),
            Launches(*launches), metadata,
            sum(len(columns[0]) for columns in (activities, host, launches)) if events is None else events,
            self.collectives,
        )  # fmt: skip
        for device in np.unique(recording.activities.device).tolist():
            delays = launch_delays(recording, device)
            if len(delays) and (apart := -float(np.median(delays))) > CLOCKS_APART_NS:
                raise TraceError(
                    f"{self.path}: overlapping clocks: kernels of device {device} begin {apart / 1e6:,.1f} ms before "
                    f"they are launched (median), so device and host times cannot be joined"
                )
            if cut := _trim(recording.activities, device):
                recording.trimmed[device] = cut
        return recording


def _trim(activities: Activities, device: int) -> tuple[int, int] | None:
    """Lets each activity begin where those before it on its stream have ended: a stream executes one at a time.

    Their union stays as it is. Returns how many were cut and by how many ns in all; None without overlap.
    """
    count = lost = 0
    mine = np.flatnonzero((activities.device == device) & (activities.stream >= 0))
    for stream in np.unique(activities.stream[mine]):
        chosen = mine[activities.stream[mine] == stream]
        chosen = chosen[np.lexsort((activities.end[chosen], activities.begin[chosen]))]
        begin, end = activities.begin[chosen], activities.end[chosen]
        before = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
        cut = np.maximum(np.minimum(before, end) - begin, 0)
        activities.begin[chosen] = begin + cut
        count, lost = count + int((cut > 0).sum()), lost + int(cut.sum())
    return (count, lost) if count else None


def _columns(flat: "array[int]", count: int) -> list[Any]:
    return list(np.array(flat, np.int64).reshape(-1, count).T.copy())


def launch_delays(recording: Recording, device: int | None = None) -> Times:
    """Nanoseconds from each launch's call to the begin of what it launched on a device, or on any, where linked."""
    found = launch_of(recording)
    linked = (found >= 0) & ((device is None) | (recording.activities.device == device))
    return recording.activities.begin[linked] - recording.launches.begin[found[linked]]


def launch_of(recording: Recording) -> Indices:
    """The index of the launch of each activity, by correlation; -1 without one."""
    return places_of(recording.activities.correlation, recording.launches.correlation)


def places_of(wanted: Indices, numbers: Indices) -> Indices:
    """The first place of each wanted number among `numbers`; -1 of one that is not there, or not positive."""
    if not len(numbers):
        return np.full(len(wanted), -1)
    order = np.argsort(numbers, kind="stable")
    found = order[np.searchsorted(numbers[order], wanted).clip(max=len(order) - 1)]
    return np.where((numbers[found] == wanted) & (wanted > 0), found, -1)
