"""Reads a trace of torch.profiler into a `Trace`; interprets only the kind of each event."""

import gc
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET

from mfulab.core.parts import Content
from mfulab.core.said import Said
from mfulab.flops.traced import is_traced_matmul
from mfulab.tracing.activities import RANGE, recording_advice
from mfulab.tracing.chrome import (
    MOST_US,
    NO_ARGS,
    Args,
    Event,
    Events,
    Stream,
    nanoseconds,
    with_formats,
)
from mfulab.tracing.part import part_of
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import (
    COPY,
    MODULE,
    UPDATE,
    Call,
    CallArguments,
    Collective,
    Indices,
    Pair,
    Span,
    Trace,
    TraceError,
    kind_of,
    printable,
)

_KERNEL, _COPY, _LAUNCH, _CALL, _ANNOTATION, _FUNCTION = range(6)
_NAMES = (  # categories of events of each kind
    "kernel Kernel concurrent_kernel",
    "gpu_memcpy gpu_memset Memcpy Memset",
    "cuda_runtime cuda_driver hip_runtime hip_driver xpu_runtime xpu_driver mtia_runtime "
    "privateuse1_runtime privateuse1_driver hpu_op Runtime runtime",
    "cpu_op Operator",
    "user_annotation",
    "python_function",
)
# Begin the names of ranges that torch itself writes, before 1.10 as operators.
_MARKS = ("ProfilerStep#", UPDATE, "enumerate(DataLoader)#")
_KINDS = dict[str, int]()  # of each category
for _kind, _categories in enumerate(_NAMES):
    _KINDS |= dict.fromkeys(_categories.split(), _kind)
# Categories that name a device without being work of it.
_NOT_WORK = re.compile(
    r"annotation|sync|event$|runtime|driver|counter|overhead|range|^Trace$", re.IGNORECASE
)
FAULTS = (
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
)  # raised by a value of an unexpected type
# Bytes per element of dtypes, by torch's names in a trace; collectives of others are not read.
BYTES = {
    "Bool": 1,
    "Byte": 1,
    "Char": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
}
BOUND = 2**62  # columns hold numbers below it
MOST_LETTERS = 60  # of a category's name
MOST_GROUP = 200  # characters of a process group's ranks, which torch cuts after thirty


def read(path: Path) -> list[Trace]:
    """Reads a trace file, gzipped or not: one trace per process that launched work. Of a file of
    gigabytes only a part is read. Raises TraceError if the file is no readable trace."""
    part = part_of(path)
    stream = Stream(path)
    intake = _Intake(Recorder(path))
    count = 0
    collects = gc.isenabled()
    gc.disable()  # millions of new objects without cycles would start collections in vain
    try:
        for batch in stream.batches(is_kept=part is None):
            count += len(batch)
            intake.batch(batch if part is None else part.kept(batch))
    finally:
        if collects:
            gc.enable()
    intake.check(path, count, stream.metadata)
    notes = intake.notes()
    if part is not None:
        notes.insert(0, part.note)
    return intake.recorder.done(stream.metadata, count, notes)


@dataclass(frozen=True)
class _Columns:
    """Events of one kind as columns: names, begins and ends in ns, process and thread,
    arguments."""

    names: Sequence[str]
    spans: Sequence[Indices]
    threads: Sequence[Pair]
    args: Sequence[Args]


class _Intake:
    """Passes events to a recorder, and counts those that it cannot take."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.endless = self.timeless = self.odd = self.ranges = 0
        self.unknown = Counter[str]()  # categories of device events that are not read

    def check(self, path: Path, count: int, metadata: Content) -> None:
        """Raises TraceError if the events make up no readable trace."""
        why = self._times_missing() or self._nothing_recorded(count) or self._no_work(metadata)
        if why:
            raise TraceError(path, why)

    def _times_missing(self) -> Said | None:
        if self.timeless:
            return Said("events_without_times", count=self.timeless)
        if self.endless:
            return Said("events_without_end", count=self.endless)
        return None

    def _nothing_recorded(self, count: int) -> Said | None:
        if not count:
            return Said("no_events")
        if len(self.recorder) or self.ranges or self.unknown:
            return None
        why = Said("foreign_trace")
        if self.odd:
            key = "all_are_no_events" if self.odd == count else "some_are_no_events"
            odd = Said(key, odd=self.odd, count=count)
            why = Said("both", first=why, second=odd)
        return with_formats(why)

    def _no_work(self, metadata: Content) -> Said | None:
        """Reason why a trace without device work cannot be read; None if there is work, or for a
        CPU's trace."""
        if self.recorder.executed:
            return None
        if self.ranges:
            return Said("range_profiler_alone", count=self.ranges, kind=RANGE)
        if self.unknown:
            return Said("unknown_kinds_alone", kinds=self._kinds())
        properties = metadata.get("deviceProperties")  # listed even if no GPU was traced
        if not isinstance(properties, list) or not properties:
            return None
        name = properties[0].get("name") if isinstance(properties[0], dict) else properties[0]
        advice = recording_advice(str(name))
        return Said("no_gpu_events", device=repr(name), advice=advice)

    def notes(self) -> list[Said]:
        """Notes on events that were left out."""
        notes = []
        if self.odd:
            notes = [Said("odd_events", count=self.odd)]
        if self.ranges:
            notes.append(Said("range_profiler", count=self.ranges))
        if self.unknown:
            notes.append(Said("unknown_kinds", kinds=self._kinds()))
        return notes

    def _kinds(self) -> str:
        return ", ".join(f"{name} ({count:,})" for name, count in self.unknown.most_common(5))

    def batch(self, events: Events) -> None:
        """Adds a batch of events: all of one kind at once if they are as a profiler writes them,
        else one by one."""
        of_kind: list[list[Event]] = [[] for _ in _NAMES]
        others = list[Event | None]()
        kind_of_category = _KINDS.get
        for event in events:
            if event is None or type(event.cat) is not str:
                others.append(event)
                continue
            kind = kind_of_category(event.cat)
            if kind is not None:
                of_kind[kind].append(event)
            elif event.ph == "X":
                others.append(event)
        for kind, alike in enumerate(of_kind):
            if kind == _FUNCTION or not self._take(kind, alike):
                others += alike
        for event in others:
            if event is None or not self._take_one(event):
                self.odd += 1

    def _take(self, kind: int, events: list[Event]) -> bool:
        """Adds all events of one kind; False if a value has an unexpected type, in which case none
        is added."""
        if kind == _LAUNCH:
            events = [
                event for event in events if event.args and event.args.correlation is not None
            ]
        if not events:
            return True
        names = [event.name for event in events]
        spans = _spans([event.ts for event in events], [event.dur for event in events])
        if spans is None or set(map(type, names)) != {str}:
            return False
        threads = [(event.pid, event.tid) for event in events]
        args = [event.args or NO_ARGS for event in events]
        columns = _Columns(names, spans, threads, args)
        try:
            self._add(kind, columns)
        except FAULTS:
            return False
        return True

    def _take_one(self, event: Event) -> bool:
        """Adds one event whose values may be of any type; False if it is invalid."""
        try:
            kind = _KINDS.get(event.cat)
            if kind is None:
                self._unread(event)
            else:
                self._take_odd(kind, event)
        except FAULTS:
            return False
        return True

    def _take_odd(self, kind: int, event: Event) -> None:
        """Adds one event of a kind that is read."""
        if kind == _FUNCTION:
            if not event.name.startswith(MODULE):
                return
            kind = _ANNOTATION
        args = event.args or NO_ARGS
        if kind == _LAUNCH and args.correlation is None:
            return
        span = self._span(event, kind <= _COPY)
        if span is None:
            return
        spans = [np.array([time], np.int64) for time in span]
        thread = event.pid, event.tid
        self._add(kind, _Columns([str(event.name)], spans, [thread], [args]))

    def _span(self, event: Event, is_activity: bool) -> Span | None:
        """Begin and end of an event in ns; counts it and returns None if its times are invalid."""
        begin = nanoseconds(event.ts)
        length = nanoseconds(event.dur)
        if begin is not None and length is not None and length >= 0:
            return begin, begin + length
        if event.ph == "X":
            is_known = length is not None or event.dur is None
            self.endless += is_activity and begin is not None and is_known
            self.timeless += begin is None or not is_known
        return None

    def _add(self, kind: int, columns: _Columns) -> None:
        """Passes events of one kind to the recorder. Raises one of `FAULTS` before any event is
        passed."""
        if kind == _LAUNCH:
            self._add_launches(columns)
        elif kind <= _COPY:
            self._add_activities(kind, columns)
        else:
            self._add_host_calls(kind, columns)

    def _add_launches(self, columns: _Columns) -> None:
        correlations = _integers([arg.correlation for arg in columns.args])
        kernels = [str(arg.kernel) for arg in columns.args]
        self.recorder.launches(columns.spans, columns.threads, correlations, columns.names, kernels)

    def _add_activities(self, kind: int, columns: _Columns) -> None:
        args = columns.args
        kinds = [COPY] * len(args)
        if kind == _KERNEL:
            kinds = list(map(kind_of, columns.names))
        devices = [arg.device for arg in args]
        streams = [arg.stream for arg in args]
        collectives = dict[int, Collective]()
        for index, arg in enumerate(args):
            if arg.device is UNSET:
                devices[index] = columns.threads[index][0]
            if arg.stream is UNSET:
                streams[index] = columns.threads[index][1]
            if arg.collective is not UNSET:
                collective = _collective(arg)
                if collective is not None:
                    collectives[index] = collective
        processes = [process for process, _ in columns.threads]
        places = list(zip(processes, _integers(devices).tolist(), strict=True))
        correlations = _integers([arg.correlation for arg in args])
        blocks = [_blocks(arg.grid) for arg in args]
        numbers = (_integers(streams), correlations, _externals(args), blocks)
        self.recorder.activities(columns.spans, kinds, columns.names, places, numbers, collectives)

    def _add_host_calls(self, kind: int, columns: _Columns) -> None:
        names = columns.names
        args = columns.args
        annotations = [True] * len(names)
        if kind != _ANNOTATION:
            marks = {name for name in set(names) if name.startswith(_MARKS)}
            annotations = [name in marks for name in names]
        sequences = [-1 if arg.sequence is UNSET else arg.sequence for arg in args]
        forward = [arg.sequence is not UNSET and arg.forward_thread == 0 for arg in args]
        numbers = (_externals(args), forward, annotations, _integers(sequences))
        calls = _calls(columns, annotations)
        self.recorder.host_calls(columns.spans, names, columns.threads, numbers, calls)

    def _unread(self, event: Event) -> None:
        """Counts an event of a kind that is not read, if it names a device."""
        if event.ph != "X":
            return
        self.ranges += event.cat == RANGE
        args = event.args
        if args is None or _NOT_WORK.search(str(event.cat)):
            return
        tasks = [task for task in (args.task_type, args.lower_task_type) if task is not UNSET]
        places = [args.device, args.stream, args.device_id, args.lower_device_id]
        places += [args.stream_id, args.lower_stream_id]
        if tasks or any(place is not UNSET for place in places):
            kind = str(event.cat or next(iter(tasks), "no category"))
            self.unknown[printable(kind)[:MOST_LETTERS]] += 1


def _calls(columns: _Columns, annotations: Sequence[bool]) -> CallArguments:
    """Arguments by index of the host calls whose arguments are kept."""
    names = columns.names
    multiplying = set(filter(is_traced_matmul, set(names)))
    calls = CallArguments()
    for index, arg in enumerate(columns.args):
        has_shapes = arg.shapes is not UNSET or arg.old_shapes
        if has_shapes or names[index] in multiplying:
            call = _arguments(names[index], arg, annotations[index])
            if call is not None:
                calls[index] = call
    return calls


def _collective(args: Args) -> Collective | None:
    """The collective that a kernel belongs to; None if torch does not describe it fully."""
    counts = args.sent, args.received, args.group_size
    if args.dtype not in BYTES:
        return None
    if not all(isinstance(count, int) and 0 <= count < BOUND for count in counts):
        return None
    kind = str(args.collective).replace("_", "").lower()
    group = str(args.group_ranks or args.group_name or "")
    ends = args.source, args.target
    if kind in ("send", "recv") and all(isinstance(rank, int) for rank in ends):
        kind = "sendrecv"  # one name on both sides, so that they are matched
        group = f"{args.source} to {args.target}"
    size = BYTES[args.dtype] * max(args.sent, args.received)
    return Collective(kind, size, args.group_size, printable(group)[:MOST_GROUP])


def _arguments(name: str, args: Args, is_annotation: bool) -> Call | None:
    """Arguments of a call that has recorded shapes or a FLOP formula; None for others."""
    shapes = args.old_shapes if args.shapes is UNSET else args.shapes
    has_shapes = bool(shapes) and any(shapes)
    if not is_traced_matmul(name) and (is_annotation or not has_shapes):
        return None
    lists = (shapes, args.types, args.values)
    kept = [tuple(values) if isinstance(values, list) else () for values in lists]
    return Call(name, *kept)


def _spans(begins: Sequence[object], lengths: Sequence[object]) -> list[Indices] | None:
    """Begins and ends in ns; None unless all times are valid numbers."""
    begin = _nanoseconds(begins)
    length = _nanoseconds(lengths)
    if begin is None or length is None or length.min() < 0:
        return None
    return [begin, begin + length]


def _nanoseconds(times: Sequence[Any]) -> Indices | None:
    """Converts times in µs to ns; None unless all are valid numbers."""
    types = set(map(type, times))
    if not types <= {int, float} or not (min(times) > -MOST_US and max(times) < MOST_US):
        return None
    if types == {int}:
        return np.array(times, np.int64) * 1000
    if types == {float}:
        return np.rint(np.array(times) * 1000).astype(np.int64)
    return np.array([round(time * 1000) for time in times], np.int64)


def _externals(args: Sequence[Args]) -> Indices:
    """External ids, by which older traces link operators to kernels, under either of their
    names."""
    ids = [arg.external for arg in args]
    if None in ids:
        ids = [arg.old_external if arg.external is None else arg.external for arg in args]
    return _integers(ids)


def _blocks(grid: object) -> int:
    """Number of blocks of a grid; 0 if unknown."""
    if not isinstance(grid, list) or not grid:
        return 0
    return max(0, _integer(math.prod(map(_integer, grid))))


def _integers(values: list[Any]) -> Indices:
    """Converts values to integers; -1 for a value that is no integer."""
    if set(map(type, values)) == {int} and min(values) > -BOUND and max(values) < BOUND:
        return np.array(values, np.int64)
    return np.array(list(map(_integer, values)), np.int64)


def _integer(value: Any) -> int:
    try:
        number = value if type(value) is int else int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    if -BOUND < number < BOUND:
        return number
    return -1
