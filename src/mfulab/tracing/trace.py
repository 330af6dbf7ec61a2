"""A trace as columns, with times in ns of its clock: what devices executed, what the host called,
and launches."""

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mfulab.core.errors import EXTRAS, UnsupportedError, installs
from mfulab.core.parts import Content
from mfulab.core.said import Said, of_source
from mfulab.tracing.communication import communicates
from mfulab.tracing.intervals import Intervals, Times

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Chosen = npt.NDArray[np.bool_]
ALL = slice(None)
Span = tuple[int, int]  # begin and end
Pair = tuple[Hashable, Hashable]  # a process and a thread or device of it

MOST_ELEMENTS = 2**48  # along one side of a tensor
MOST_DEVICES = 2**31
MOST_OF_FAULT = 120  # characters of another library's message
# Begins the name of a module's range, which torch.profiler writes as nn.Module: NAME_NUMBER.
MODULE = "nn.Module: "
# Begins the name of the range that torch writes around an optimiser's step.
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
    """Mark of a step as torch.profiler writes it, for a range that a user named step 12,
    iteration_12, …; None for other names."""
    match = _STEP.fullmatch(name)
    if match:
        return f"ProfilerStep#{int(match[1])}"
    return None


def _fits(name: str, value: object) -> bool:
    """True if a device property is valid: a string as its name, an integer as id or number of
    units, else any number."""
    if name == "name":
        return isinstance(value, str)
    kind = int if name in ("id", "numSms") else int | float
    return isinstance(value, kind) and 0 <= value < MOST_ELEMENTS


def _fitting(device: Content) -> Content:
    """The valid properties of a device."""
    facts = {name: value for name, value in device.items() if _fits(name, value)}
    if "name" in facts:
        facts["name"] = printable(facts["name"])
    return facts


class TraceError(UnsupportedError):
    """A file that cannot be read as a trace. The message is the file's name and `why`: the reason,
    and what to do."""

    def __init__(self, path: object, why: Said) -> None:
        super().__init__(of_source(str(path), why))
        self.path = path
        self.why = why

    def __reduce__(self) -> tuple[type[Self], tuple[object, Said]]:
        return type(self), (self.path, self.why)


def fault(error: BaseException) -> str:
    """Class and first characters of another library's error."""
    return f"{type(error).__name__}: {str(error)[:MOST_OF_FAULT]}"


def lacking(wanted: str, package: str) -> Said:
    """Reason why a file cannot be read without a package, and how to install it. `wanted` is the
    message key of what is read."""
    install = installs(EXTRAS[package])
    return Said("needs_package", wanted=Said(wanted), package=package, install=install)


def printable(name: str) -> str:
    """Replaces characters of a file's name that cannot be printed by spaces: control characters,
    halves of surrogate pairs."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else " " for letter in name)


@dataclass(frozen=True)
class Call:
    """Recorded arguments of one operator's call: shapes, types, and values of scalars."""

    name: str
    shapes: tuple[Any, ...]
    types: tuple[Any, ...]
    values: tuple[Any, ...]

    def plain(self) -> "Call":
        """Returns the call without what no profiler writes: drops all shapes if one is invalid, and
        types that are no strings."""
        shapes = self.shapes
        if not all(isinstance(shape, list) and _is_shape(shape) for shape in shapes):
            shapes = ()
        types = []
        for kind in self.types:
            types.append(printable(kind) if isinstance(kind, str) else "")
        return Call(self.name, shapes, tuple(types), self.values)


def _is_shape(shape: list[object]) -> bool:
    """True for the shape of a tensor, or a list of such shapes."""
    if any(isinstance(side, list) for side in shape):
        return all(isinstance(side, list) and _is_shape(side) for side in shape)
    return all(type(side) is int and 0 <= side < MOST_ELEMENTS for side in shape)


@dataclass(frozen=True, order=True)
class Collective:
    """One collective as torch describes it: kind, bytes of its larger side, number of processes,
    and their group, "" if unknown."""

    kind: str
    bytes: int
    processes: int
    group: str = ""


@dataclass(frozen=True, order=True)
class Transfer:
    """One kernel of a collective: begin and end in ns, and the device's number."""

    begin: int
    end: int
    device: int
    collective: Collective


@dataclass
class Columns:
    """Begins and ends of events in ns; subclasses add more columns."""

    begin: Times
    end: Times

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def lengths(self) -> Times:
        """Length of each event in ns."""
        return self.end - self.begin

    def where(self, chosen: Chosen | Indices | list[int] | slice = ALL) -> Intervals:
        """Intervals of the events, or of some, chosen by mask or index."""
        return Intervals(self.begin[chosen], self.end[chosen])

    def columns(self) -> list[npt.NDArray[Any]]:
        """The columns, in the order of their fields."""
        return [column for column in vars(self).values() if isinstance(column, np.ndarray)]

    def chosen(self, mask: Chosen) -> Self:
        """Returns the events selected by a mask, in the same order."""
        return type(self)(*(column[mask] for column in self.columns()))


@dataclass
class Activities(Columns):
    """Work that devices executed, one row per activity; `name` indexes `Trace.names`."""

    kind: Indices
    name: Indices
    device: Indices
    stream: Indices
    correlation: Indices
    external: Indices
    blocks: Indices


CallArguments = dict[int, Call]  # recorded arguments by the index of the call


@dataclass
class HostCalls(Columns):
    """Operators and annotations on the host, one row per call."""

    name: Indices
    thread: Indices
    external: Indices
    forward: Chosen  # called with gradients enabled
    annotation: Chosen
    sequence: Indices  # autograd's number of an operator and its backward call; -1 if none
    calls: CallArguments = field(default_factory=dict)

    def chosen(self, mask: Chosen) -> Self:
        """Returns the calls selected by a mask with their arguments, in the same order."""
        selected = super().chosen(mask)
        indices = np.cumsum(mask) - 1
        for index, call in self.calls.items():
            if mask[index]:
                selected.calls[int(indices[index])] = call
        return selected


@dataclass
class Launches(Columns):
    """Runtime calls; `correlation` links each to what a device executed."""

    thread: Indices
    correlation: Indices
    name: Indices  # index of `Trace.names`
    kernel: Indices  # index of the launched kernel's name; -1 if unknown


@dataclass
class Trace:
    """Events of one trace file, or of one process in it."""

    path: Path
    names: list[str]
    activities: Activities
    host: HostCalls
    launches: Launches
    metadata: Content
    events: int  # number of events in the file
    collectives: list[Transfer] = field(default_factory=list)
    # device → number of overlapping activities, ns trimmed from them
    trimmed: dict[int, tuple[int, int]] = field(default_factory=dict)
    # index of a replayed graph's kernel → index of its host call, added from the capture's trace
    owned: dict[int, int] = field(default_factory=dict)
    notes: list[Said] = field(default_factory=list)
    ranks: int = 1  # number of processes in the file
    span: tuple[int, int] | None = None  # first to last activity of all processes, ns

    def chosen(self, activities: Chosen, host: Chosen, launches: Chosen) -> "Trace":
        """Returns a trace of the selected activities, host calls and launches, in the same
        order."""
        return replace(
            self,
            activities=self.activities.chosen(activities),
            host=self.host.chosen(host),
            launches=self.launches.chosen(launches),
            notes=list(self.notes),
        )

    def named(self, test: Callable[[str], object]) -> Chosen:
        """Mask over `names`, True for each that passes a test."""
        return np.array([bool(test(name)) for name in self.names], bool)

    @property
    def of_module(self) -> Chosen:
        """Mask of the host calls that are ranges of modules, which are no operators."""
        return self.named(lambda name: name.startswith(MODULE))[self.host.name]

    @cached_property
    def properties(self) -> list[Content]:
        """Valid properties of each device in the file; invalid values are left out."""
        listed = self.metadata.get("deviceProperties")
        if not isinstance(listed, list):
            return []
        return [_fitting(device) for device in listed if isinstance(device, dict)]

    def distributed(self, name: str) -> int | None:
        """Integer `rank` or `world_size` of the file's `distributedInfo`; None if missing or
        invalid."""
        info = self.metadata.get("distributedInfo")
        value = None
        if isinstance(info, dict):
            value = info.get(name)
        if isinstance(value, int) and 0 <= value < MOST_DEVICES:
            return value
        return None

    def device_properties(self, ordinal: int | None = None) -> Content:
        """Properties of a device by its number, by default of the one with most activities; empty
        if unknown."""
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
        """Properties by device number (the first, if numbers are equal), and those of all other
        numbers. ROCm numbers a process's devices after those of the machine, so devices of one name
        share the first one's properties; else they are empty."""
        listed = self.properties
        by_number = {}
        for device in reversed(listed):
            if "id" in device:
                by_number[device["id"]] = device
        is_alike = len({device.get("name") for device in listed}) == 1
        return by_number, listed[0] if is_alike else {}


def launch_of(trace: Trace) -> Indices:
    """Index of each activity's launch, by correlation; -1 if there is none."""
    return places_of(trace.activities.correlation, trace.launches.correlation)


def grouped(numbers: Indices) -> Iterator[tuple[int, Indices]]:
    """Yields each distinct number in ascending order, with its indices. Takes one pass, however
    many numbers there are."""
    if not len(numbers):
        return
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.diff(ordered)) + 1
    for places in np.split(order, starts):
        yield int(numbers[places[0]]), places


def places_of(wanted: Indices, numbers: Indices) -> Indices:
    """Index of the first occurrence of each wanted number among `numbers`; -1 if it is missing or
    not positive."""
    if not len(numbers):
        return np.full(len(wanted), -1)
    order = np.argsort(numbers, kind="stable")
    index = order[np.searchsorted(numbers[order], wanted).clip(max=len(order) - 1)]
    return np.where((numbers[index] == wanted) & (wanted > 0), index, -1)
