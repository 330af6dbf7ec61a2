"""Reads Perfetto's protobuf as rocprofv3 writes it (`--output-format pftrace`) into a `Trace`: slices of
tracks by category, of rocprofiler-sdk, source/lib/output/generatePerfetto.cpp. Messages:
protos/perfetto/trace of google/perfetto."""

import functools
from collections import defaultdict
from pathlib import Path
from typing import Any

from mfulab.core.parts import Content
from mfulab.core.said import Said
from mfulab.tracing.chrome import Stream
from mfulab.tracing.protobuf import classes
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import (
    COPY,
    MOST_OF_FAULT,
    Span,
    Trace,
    TraceError,
    kind_of,
    lacking,
    printable,
    step_mark,
)

ENDINGS = (".pftrace", ".perfetto-trace")
BEGIN, END = 1, 2  # types of a slice's events
CLEARED = 1  # a packet's flag: names that were numbered before are gone
_MESSAGES = {
    "Trace": "packet=1*Packet",
    "Packet": "timestamp=8u sequence=10u event=11Event interned=12Interned flags=13u clock=58u"
    " snapshot=6Snapshot defaults=59Defaults",
    "Snapshot": "clocks=1*Clock",
    "Clock": "id=1u timestamp=2u is_incremental=3i unit_ns=4u",
    "Defaults": "clock=58u event=11Event",
    "Event": "category_iids=3*u annotations=4*Annotation type=9i name_iid=10u track=11u categories=22*b name=23b",
    "Annotation": "name_iid=1u uint=3|u int=4|i double=5|d text=6|b name=10b",
    "Interned": "categories=1*Name names=2*Name annotations=3*Name",
    "Name": "iid=1u name=2b",
}


def read(path: Path) -> list[Trace]:
    """Reads kernels, copies, calls of HIP and ranges of ROCTx. Raises TraceError: protobuf is not
    installed, the file is damaged, or it holds no kernel."""
    content = b"".join(Stream(path).chunks())
    try:
        trace = _classes()["Trace"]()
        trace.ParseFromString(content)
    except ImportError:
        raise TraceError(path, lacking("perfetto_trace", "google.protobuf")) from None
    except Exception as error:  # protobuf's own, which has no class of the standard library
        fault = str(error)[:MOST_OF_FAULT]
        raise TraceError(path, Said("damaged_perfetto", {"error": fault})) from None
    slices = _Slices(Recorder(path))
    for packet in trace.packet:
        slices.take(packet)
    if not slices.recorder.executed:
        raise TraceError(path, Said("perfetto_without_kernels"))
    return slices.recorder.done({}, slices.count)


class _Slices:
    """Slices that are open on each track, and the names that each sequence of packets numbered."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.count = 0
        self._open = defaultdict[int, list[tuple[int, Any]]](list)
        # Of each sequence of packets: names by number, clocks by number, and what packets leave out.
        self._names = defaultdict[tuple[int, str], dict[int, str]](dict)
        self._clocks = dict[tuple[int, int], Any]()
        self._defaults = dict[int, Any]()

    def take(self, packet: Any) -> None:
        """Adds a packet: names, and begins and ends of slices; a slice without an end is left out."""
        sequence, event = packet.sequence, packet.event
        if packet.HasField("defaults"):
            self._defaults[sequence] = packet.defaults
        for clock in packet.snapshot.clocks:
            self._clocks[sequence, clock.id] = clock
        for kind in ("categories", "names", "annotations"):
            numbered = self._names[sequence, kind]
            if packet.flags & CLEARED:
                numbered.clear()
            numbered |= {entry.iid: _text(entry.name) for entry in getattr(packet.interned, kind)}
        if not packet.HasField("event"):
            return
        time = self._time(packet)
        track = event.track
        if not event.HasField("track") and sequence in self._defaults:
            track = self._defaults[sequence].event.track
        if event.type == BEGIN:
            self._open[track].append((time, self._told(sequence, event)))
        elif event.type == END and self._open[track]:
            begin, args = self._open[track].pop()
            self.count += 1
            self._record((begin, max(begin, time)), *args)

    def _time(self, packet: Any) -> int:
        """Nanoseconds; an incremental clock tells how many units a packet is after the last one."""
        defaults = self._defaults.get(packet.sequence)
        number = packet.clock or (defaults.clock if defaults else 0)
        clock = self._clocks.get((packet.sequence, number))
        time = int(packet.timestamp)
        if clock is None:
            return time
        if clock.is_incremental:
            clock.timestamp += time
            time = clock.timestamp
        return time * max(1, clock.unit_ns)

    def _told(self, sequence: int, event: Any) -> tuple[str, str, Content]:
        """Category, name and annotations of a slice."""
        categories = [*map(_text, event.categories)]
        numbered = self._names[sequence, "categories"]
        categories += [numbered.get(iid, "") for iid in event.category_iids]
        name = _text(event.name) or self._names[sequence, "names"].get(event.name_iid, "")
        fields = {}
        for note in event.annotations:
            key = _text(note.name) or self._names[sequence, "annotations"].get(note.name_iid, "")
            field = note.WhichOneof("value")
            fields[key] = getattr(note, field) if field else None
        return next(iter(categories), ""), printable(name), fields

    def _record(self, span: Span, category: str, name: str, fields: Content) -> None:
        linked = _number(fields.get("corr_id"))
        thread = (0, _number(fields.get("tid")))
        agent = fields.get("agent", fields.get("dst_agent"))
        track = (0, max(0, _number(agent)))
        if category == "kernel_dispatch":
            stream = _number(fields.get("queue"))
            self.recorder.activity(span, kind_of(name), name, track, stream, linked, -1, 0)
        elif category == "memory_copy":
            self.recorder.activity(span, COPY, name, track, -1, linked, -1, 0)
        elif category.startswith("hip"):
            self.recorder.launch(span, thread, linked, name)
        elif category == "marker_api":
            mark = step_mark(name)
            self.recorder.host_call(span, mark or name, thread, -1, False, mark is not None)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _number(value: object) -> int:
    """A whole number, also as text: an agent may be `0` or `4-0`; -1 for what is none."""
    if isinstance(value, bytes):
        value = value.partition(b"-")[0]
    try:
        return int(value) % (1 << 62)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return -1


@functools.cache
def _classes() -> Content:
    return classes("perfetto", _MESSAGES)
