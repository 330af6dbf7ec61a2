"""A trace as columns, in ns of its clock: what devices executed, operators that the host called, and launches."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said

Times = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]
Span = tuple[int, int]  # begin and end
Pair = tuple[Any, Any]  # a process and a thread or device of it
Collective = tuple[str, int, int]  # its kind, the bytes of its larger side, and how many processes take part

MOST_ELEMENTS = 2**48  # along one side of a tensor
MOST_DEVICES = 2**31
MODULE = "nn.Module: "  # begins the name of a module's range, as torch.profiler writes it: nn.Module: NAME_NUMBER
UPDATE = "Optimizer.step#"  # begins the name of the range that torch writes around an optimiser's step
COMPUTE, COMMUNICATION, COPY = range(3)
KINDS = ("compute", "communication", "copy")
_COMMUNICATION = ("nccl", "rccl", "mscclpp", "nvshmem", "deep_ep", "void deep_ep")
_STEP = re.compile(
    r"(?:profilerstep|(?:train(?:ing)?|forward)?[ _]?(?:step|iter(?:ation)?))[ _#:=]*(\d+)", re.IGNORECASE
)


@functools.cache
def kind_of(kernel: str) -> int:
    """`COMMUNICATION` or `COMPUTE`, by a kernel's name."""
    return COMMUNICATION if kernel.lower().startswith(_COMMUNICATION) else COMPUTE


def step_mark(name: str) -> str | None:
    """The mark of one step as torch.profiler writes it, for a range that a user called step 12, iteration_12, ….."""
    match = _STEP.fullmatch(name)
    return f"ProfilerStep#{int(match[1])}" if match else None


def _fits(name: str, value: Any) -> bool:
    """Says whether a device's property may be what it says: a text as its name, a whole number of units, else any."""
    if name == "name":
        return isinstance(value, str)
    return isinstance(value, int if name in ("id", "numSms") else int | float) and 0 <= value < MOST_ELEMENTS


class TraceError(UnsupportedError):
    """A file that cannot be read as a trace; the message says why and what to do."""


def printable(name: str) -> str:
    """A name from a file without control characters and halves of characters, which no terminal and no file takes."""
    return name if name.isprintable() else "".join(letter if letter.isprintable() else " " for letter in name)


@dataclass(frozen=True)
class Call:
    """One operator's arguments as recorded: shapes, types, values of scalars."""

    name: str
    shapes: tuple[Any, ...]
    types: tuple[Any, ...]
    values: tuple[Any, ...]

    def plain(self) -> "Call":
        """The call without what no profiler writes: all shapes go where one is none, and types that are no text."""
        told = all(isinstance(shape, list) and _is_shape(shape) for shape in self.shapes)
        types = (printable(kind) if isinstance(kind, str) else "" for kind in self.types)
        return Call(self.name, self.shapes if told else (), tuple(types), self.values)


def _is_shape(shape: list[Any]) -> bool:
    inner, sides = ([side for side in shape if isinstance(side, list) is nested] for nested in (True, False))
    return all(map(_is_shape, inner)) and all(isinstance(side, int) and 0 <= side < MOST_ELEMENTS for side in sides)


@dataclass
class Columns:
    """Begins and ends of events, ns; more columns say more of each."""

    begin: Times
    end: Times

    def __len__(self) -> int:
        return len(self.begin)


@dataclass
class Activities(Columns):
    """Work that devices executed, a column each; `name` indexes `Trace.names`."""

    kind: Indices
    name: Indices
    device: Indices
    stream: Indices
    correlation: Indices
    external: Indices
    blocks: Indices


@dataclass
class HostCalls(Columns):
    """Operators and annotations on the host."""

    name: Indices
    thread: Indices
    external: Indices
    forward: npt.NDArray[np.bool_]  # called with gradients enabled
    annotation: npt.NDArray[np.bool_]
    sequence: Indices  # autograd's number of an operator and its backward pass, -1 without one
    calls: dict[int, Call]


@dataclass
class Launches(Columns):
    """Calls of the runtime, with a correlation to what the device executed."""

    thread: Indices
    correlation: Indices
    name: Indices  # index of `Trace.names`
    kernel: Indices  # the name of what was launched, -1 where the trace does not say


@dataclass
class Trace:
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
    ranks: int = 1  # processes in the file, of which this is one
    span: tuple[int, int] | None = None  # first to last activity of them all; None without any

    def chosen(self, activities: Chosen, host: Chosen, launches: Chosen) -> "Trace":
        """A trace of some of its activities, host calls and launches, in the same order."""
        place = np.cumsum(host) - 1
        calls = {int(place[index]): call for index, call in self.host.calls.items() if host[index]}
        *columns, _ = vars(self.host).values()
        return replace(
            self,
            activities=Activities(*(column[activities] for column in vars(self.activities).values())),
            host=HostCalls(*[*(column[host] for column in columns), calls]),
            launches=Launches(*(column[launches] for column in vars(self.launches).values())),
            notes=list(self.notes),
        )

    def named(self, test: Callable[[str], Any]) -> npt.NDArray[np.bool_]:
        """Marks the names that pass a test, one place each."""
        return np.array([bool(test(name)) for name in self.names], bool)

    @property
    def of_module(self) -> npt.NDArray[np.bool_]:
        """Marks the host calls that are ranges of modules, in which operators are not sought."""
        return self.named(lambda name: name.startswith(MODULE))[self.host.name]

    @property
    def properties(self) -> list[dict[str, Any]]:
        """Facts about each device that the file tells, without what is no fact: a list, a name that is a number."""
        listed = self.metadata.get("deviceProperties")
        devices = [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []
        fitting = ([(name, value) for name, value in device.items() if _fits(name, value)] for device in devices)
        return [{name: printable(told) if name == "name" else told for name, told in facts} for facts in fitting]

    def distributed(self, name: str) -> int | None:
        """A whole number of the file's `distributedInfo`: `rank` or `world_size`."""
        about = self.metadata.get("distributedInfo")
        value = about.get(name) if isinstance(about, dict) else None
        return value if isinstance(value, int) and 0 <= value < MOST_DEVICES else None

    def device_properties(self, ordinal: int | None = None) -> dict[str, Any]:
        """Properties of a device by its number, else of that with most activities; empty where they are not told."""
        if not len(self.activities) or not self.properties:
            return {}
        if ordinal is None:
            numbers, counts = np.unique(self.activities.device, return_counts=True)
            ordinal = int(numbers[counts.argmax()])
        # ROCm numbers a process's devices after those of the machine; of like devices the first will do.
        alike = self.properties[0] if len({device.get("name") for device in self.properties}) == 1 else {}
        return next((device for device in self.properties if device.get("id") == ordinal), alike)


def launch_of(trace: Trace) -> Indices:
    """The index of the launch of each activity, by correlation; -1 without one."""
    return places_of(trace.activities.correlation, trace.launches.correlation)


def places_of(wanted: Indices, numbers: Indices) -> Indices:
    """The first place of each wanted number among `numbers`; -1 of one that is not there, or not positive."""
    if not len(numbers):
        return np.full(len(wanted), -1)
    order = np.argsort(numbers, kind="stable")
    place = order[np.searchsorted(numbers[order], wanted).clip(max=len(order) - 1)]
    return np.where((numbers[place] == wanted) & (wanted > 0), place, -1)
