"""A trace as columns, in ns of its clock: what devices executed, operators that the host called,
and launches."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mfulab.core.errors import EXTRAS, UnsupportedError, is_checkout
from mfulab.core.parts import Content
from mfulab.core.said import Said, of_source
from mfulab.tracing.communication import communicates

Times = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]
Span = tuple[int, int]  # begin and end
Pair = tuple[Any, Any]  # a process and a thread or device of it

MOST_ELEMENTS = 2**48  # along one side of a tensor
MOST_DEVICES = 2**31
MOST_OF_FAULT = 120  # characters of another library's message
# begins the name of a module's range, as torch.profiler writes it: nn.Module: NAME_NUMBER
MODULE = "nn.Module: "
# begins the name of the range that torch writes around an optimiser's step
UPDATE = "Optimizer.step#"
COMPUTE, COMMUNICATION, COPY = range(3)
KINDS = ("compute", "communication", "copy")
_STEP = re.compile(
    r"(?:profilerstep|(?:train(?:ing)?|forward)?[ _]?(?:step|iter(?:ation)?))[ _#:=]*(\d+)",
    re.IGNORECASE,
)


def kind_of(kernel: str) -> int:
    """`COMMUNICATION` or `COMPUTE`, by a kernel's name."""
    if communicates(kernel):
        return COMMUNICATION
    return COMPUTE


def step_mark(name: str) -> str | None:
    """The mark of one step as torch.profiler writes it, for a range that a user called step 12,
    iteration_12, ….."""
    match = _STEP.fullmatch(name)
    if match:
        return f"ProfilerStep#{int(match[1])}"
    return None


def _fits(name: str, value: object) -> bool:
    """Says whether a device's property may be what it says: a text as its name, a whole number of
    units, else any."""
    if name == "name":
        return isinstance(value, str)
    return (
        isinstance(value, int if name in ("id", "numSms") else int | float)
        and 0 <= value < MOST_ELEMENTS
    )


def _fitting(device: Content) -> Content:
    """A device's properties that may be what they say."""
    facts = {}
    for name, value in device.items():
        if _fits(name, value):
            facts[name] = value
    if "name" in facts:
        facts["name"] = printable(facts["name"])
    return facts


class TraceError(UnsupportedError):
    """A file that cannot be read as a trace: `why`, behind its name, and what to do."""

    def __init__(self, path: object, why: Said) -> None:
        super().__init__(of_source(str(path), why))
        self.path = path
        self.why = why

    def __reduce__(self) -> tuple[type[Self], tuple[object, Said]]:
        return type(self), (self.path, self.why)


def fault(error: BaseException) -> str:
    """Class and first words of another library's error."""
    return f"{type(error).__name__}: {str(error)[:MOST_OF_FAULT]}"


def lacking(wanted: str, package: str) -> Said:
    """Reason that reading what the key `wanted` names needs a package, and how to install it."""
    key = "pip"
    if is_checkout():
        key = "pip_in_checkout"
    install = Said(key, {"extra": EXTRAS[package]})
    return Said("needs_package", {"wanted": Said(wanted), "package": package, "install": install})


def printable(name: str) -> str:
    """A name from a file without control characters and halves of characters, which no terminal and
    no file takes."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else " " for letter in name)


@dataclass(frozen=True)
class Call:
    """One operator's arguments as recorded: shapes, types, values of scalars."""

    name: str
    shapes: tuple[Any, ...]
    types: tuple[Any, ...]
    values: tuple[Any, ...]

    def plain(self) -> "Call":
        """The call without what no profiler writes: all shapes go where one is none, and types that
        are no text."""
        known = all(isinstance(shape, list) and _is_shape(shape) for shape in self.shapes)
        types = (printable(kind) if isinstance(kind, str) else "" for kind in self.types)
        return Call(self.name, self.shapes if known else (), tuple(types), self.values)


def _is_shape(shape: list[Any]) -> bool:
    """Says whether it is the shape of a tensor, or a list of such."""
    if any(isinstance(side, list) for side in shape):
        return all(isinstance(side, list) and _is_shape(side) for side in shape)
    return all(isinstance(side, int) and 0 <= side < MOST_ELEMENTS for side in shape)


@dataclass(frozen=True, order=True)
class Collective:
    """One collective as torch describes it: kind, bytes of its larger side, how many processes take
    part, and which; "" where that is not told."""

    kind: str
    bytes: int
    processes: int
    group: str = ""


@dataclass(frozen=True, order=True)
class Transfer:
    """One kernel of a collective: begin and end in ns, and the number of its device."""

    begin: int
    end: int
    device: int
    collective: Collective


@dataclass
class Columns:
    """Begins and ends of events, ns; more columns say more of each."""

    begin: Times
    end: Times

    def __len__(self) -> int:
        return len(self.begin)

    def columns(self) -> list[npt.NDArray[Any]]:
        """The columns, in the order of their fields."""
        return [column for column in vars(self).values() if isinstance(column, np.ndarray)]

    def chosen(self, mask: Chosen) -> Self:
        """Some of the events, in the same order."""
        return type(self)(*(column[mask] for column in self.columns()))


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
    forward: Chosen  # called with gradients enabled
    annotation: Chosen
    sequence: Indices  # autograd's number of an operator and its backward pass, -1 without one
    calls: dict[int, Call] = field(default_factory=dict)

    def chosen(self, mask: Chosen) -> Self:
        """Some of the calls with their arguments, in the same order."""
        made = super().chosen(mask)
        places = np.cumsum(mask) - 1
        for index, call in self.calls.items():
            if mask[index]:
                made.calls[int(places[index])] = call
        return made


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
    metadata: Content
    events: int
    collectives: list[Transfer] = field(default_factory=list)
    trimmed: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # of a device: how many overlapped, ns cut
    owned: dict[int, int] = field(
        default_factory=dict
    )  # kernels of replayed graphs: the call that another trace has
    notes: list[Said] = field(default_factory=list)
    ranks: int = 1  # processes in the file, of which this is one
    span: tuple[int, int] | None = None  # first to last activity of them all; None without any

    def chosen(self, activities: Chosen, host: Chosen, launches: Chosen) -> "Trace":
        """A trace of some of its activities, host calls and launches, in the same order."""
        return replace(
            self,
            activities=self.activities.chosen(activities),
            host=self.host.chosen(host),
            launches=self.launches.chosen(launches),
            notes=list(self.notes),
        )

    def named(self, test: Callable[[str], Any]) -> Chosen:
        """Marks the names that pass a test, one place each."""
        return np.array([bool(test(name)) for name in self.names], bool)

    @property
    def of_module(self) -> Chosen:
        """Marks the host calls that are ranges of modules, in which operators are not sought."""
        return self.named(lambda name: name.startswith(MODULE))[self.host.name]

    @cached_property
    def properties(self) -> list[Content]:
        """Facts about each device that the file tells, without what is no fact: a list, a name that
        is a number."""
        listed = self.metadata.get("deviceProperties")
        if not isinstance(listed, list):
            return []
        return [_fitting(device) for device in listed if isinstance(device, dict)]

    def distributed(self, name: str) -> int | None:
        """A whole number of the file's `distributedInfo`: `rank` or `world_size`."""
        info = self.metadata.get("distributedInfo")
        value = None
        if isinstance(info, dict):
            value = info.get(name)
        if isinstance(value, int) and 0 <= value < MOST_DEVICES:
            return value
        return None

    def device_properties(self, ordinal: int | None = None) -> Content:
        """Properties of a device by its number, else of that with most activities; empty where they
        are not told."""
        known = self.properties
        if not len(self.activities) or not known:
            return {}
        if ordinal is None:
            numbers, counts = np.unique(self.activities.device, return_counts=True)
            ordinal = int(numbers[counts.argmax()])
        by_number, alike = self._properties_by_number
        return by_number.get(ordinal, alike)

    @cached_property
    def _properties_by_number(self) -> tuple[dict[int, Content], Content]:
        """Properties by the device's number, of equal numbers the first, and those of the rest:
        ROCm numbers a process's devices after those of the machine; of like devices the first will
        do."""
        listed = self.properties
        by_number = {}
        for device in reversed(listed):
            if "id" in device:
                by_number[device["id"]] = device
        is_alike = len({device.get("name") for device in listed}) == 1
        return by_number, listed[0] if is_alike else {}


def launch_of(trace: Trace) -> Indices:
    """The index of the launch of each activity, by correlation; -1 without one."""
    return places_of(trace.activities.correlation, trace.launches.correlation)


def grouped(numbers: Indices) -> Iterator[tuple[int, Indices]]:
    """Each number, in order, and its places: one pass, however many numbers there are."""
    if not len(numbers):
        return
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.diff(ordered)) + 1
    for places in np.split(order, starts):
        yield int(numbers[places[0]]), places


def places_of(wanted: Indices, numbers: Indices) -> Indices:
    """The first place of each wanted number among `numbers`; -1 of one that is not there, or not
    positive."""
    if not len(numbers):
        return np.full(len(wanted), -1)
    order = np.argsort(numbers, kind="stable")
    index = order[np.searchsorted(numbers[order], wanted).clip(max=len(order) - 1)]
    return np.where((numbers[index] == wanted) & (wanted > 0), index, -1)
