"""Makes `Trace`s of the events that a reader of a format finds, one a process, without what cannot have happened."""

import marshal
import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mfulab.core.said import Said
from mfulab.tracing.trace import (
    Activities,
    Call,
    Collective,
    HostCalls,
    Indices,
    Launches,
    Pair,
    Span,
    Trace,
    TraceError,
    launch_of,
    printable,
)

CLOCKS_APART_NS = 1_000_000  # a kernel that begins so long before its launch was timed by another clock
_NUMBER = re.compile(r"\s*\d+\s*$")
PAUSE_NS = 3600 * 10**9  # no profile pauses for an hour, and no event takes one


class Recorder:
    """Makes the columns of a `Trace`, event by event; -1 stands for a number that an event does not hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names = defaultdict[str, int](count().__next__)
        self._threads = defaultdict[Pair, int](count().__next__)  # of each process
        self._places = defaultdict[tuple[Any, int], int](count().__next__)  # devices of each process
        self._activities, self._host, self._launches = array("q"), array("q"), array("q")
        self._collectives: list[tuple[int, int, int, Collective]] = []
        self._calls: dict[int, Call] = {}
        self._shared: dict[bytes, Call] = {}

    def __len__(self) -> int:
        return len(self._activities) + len(self._host)

    @property
    def executed(self) -> bool:
        """Says whether a device executed anything."""
        return len(self._activities) > 0

    def activity(
        self, span: tuple[int, int], kind: int, name: str, place: tuple[Any, int], stream: int, correlation: int,
        external: int, blocks: int, collective: Collective | None = None,
    ) -> None:  # fmt: skip
        """Adds what a device executed: `kind` of `KINDS`, process and device, and blocks of its grid, 0 if unknown."""
        number = self._places[place]
        self._activities.fromlist([*span, kind, self._names[name], number, stream, correlation, external, blocks])
        if collective:
            self._collectives.append((*span, number, collective))

    def host_call(
        self, span: tuple[int, int], name: str, thread: tuple[Any, Any], external: int, forward: bool,
        annotation: bool, call: Call | None = None, sequence: int = -1,
    ) -> None:  # fmt: skip
        """Adds an operator or annotation of a process's thread; `call` holds its arguments, where they are recorded."""
        if call is not None:  # equal ones are kept once
            key = marshal.dumps((call.name, call.shapes, call.types, call.values), 0)
            if key not in self._shared:
                self._shared[key] = call.plain()
            self._calls[len(self._host) // 8] = self._shared[key]
        thread_number = self._threads[thread]
        self._host.fromlist([*span, self._names[name], thread_number, external, forward, annotation, sequence])

    def launch(self, span: Span, thread: Pair, correlation: int, name: str, kernel: str = "") -> None:
        """Adds a call of the runtime, with the name of the kernel that it launches where that is known."""
        launched = self._names[kernel] if kernel else -1
        self._launches.fromlist([*span, self._threads[thread], correlation, self._names[name], launched])

    def done(self, metadata: dict[str, Any], events: int | None = None, notes: Sequence[Said] = ()) -> list[Trace]:
        """A trace of each process that launched work. Raises TraceError where another clock timed kernels."""
        flat = (self._activities, 9), (self._host, 8), (self._launches, 6)
        activities, host, launches = ([*np.array(rows, np.int64).reshape(-1, n).T.copy()] for rows, n in flat)
        *spans, forward, annotation, sequence = host
        trace = Trace(
            self.path, list(map(printable, self._names)), Activities(*activities),
            HostCalls(*[*spans, forward.astype(bool), annotation.astype(bool), sequence, self._calls]),
            Launches(*launches), metadata,
            sum(len(columns[0]) for columns in (activities, host, launches)) if events is None else events,
            self._collectives, notes=list(notes),
        )  # fmt: skip
        threads, places = [process for process, _ in self._threads], [process for process, _ in self._places]
        devices = np.array([device for _, device in self._places], np.int64)
        traces = [_checked(part, devices) for part in _split(trace, threads, places)]
        if executed := [part.activities for part in traces if len(part.activities)]:
            span = int(min(work.begin.min() for work in executed)), int(max(work.end.max() for work in executed))
            traces = [replace(part, span=span) for part in traces]
        return traces


def _checked(trace: Trace, devices: Indices) -> Trace:
    """One process's trace with its devices' numbers, without impossible events, each stream one at a time."""
    trace = _possible(trace)  # while devices are numbered by their places, from 0
    activities = trace.activities
    activities.device = devices[activities.device] if len(activities) else activities.device
    held = trace.collectives
    trace.collectives = [(begin, end, int(devices[place]), what) for begin, end, place, what in held]
    launch = launch_of(trace)
    for device in np.unique(activities.device).tolist():
        linked = (launch >= 0) & (activities.device == device)
        delays = activities.begin[linked] - trace.launches.begin[launch[linked]]
        if len(delays) and (apart := -float(np.median(delays))) > CLOCKS_APART_NS:
            raise TraceError(
                f"{trace.path}: overlapping clocks: kernels of device {device} begin {apart / 1e6:,.1f} ms before "
                f"they are launched (median), so device and host times cannot be joined"
            )
        if cut := _trim(activities, device):
            trace.trimmed[device] = cut
    return trace


def _possible(trace: Trace) -> Trace:
    """Leaves out events at times that cannot be; a note counts them. An activity at 0 before all that the host did was
    never timed. Events an hour away from most others, or as long, have a broken stamp. A kernel long before its launch
    has one too, unless most have: then the clocks differ."""
    columns = trace.activities, trace.host, trace.launches
    begin, end = (np.concatenate([getattr(column, name) for column in columns]) for name in ("begin", "end"))
    held = end - begin < PAUSE_NS
    if held.any() and begin[held].max() - begin[held].min() > PAUSE_NS:
        order = np.argsort(begin, kind="stable")
        run = np.empty(len(begin), np.int64)
        run[order] = np.cumsum(np.diff(begin[order], prepend=begin[order[0]]) > PAUSE_NS)
        held &= run == np.bincount(run[held]).argmax()
    count, mine = len(trace.activities), trace.activities
    called = begin[count:][held[count:]]
    if len(called):
        held[:count] &= (mine.begin != 0) | (called.min() <= CLOCKS_APART_NS)
    launch = launch_of(trace)
    linked = (launch >= 0) & held[:count]
    early = linked & (mine.begin < np.append(trace.launches.begin, 0)[launch] - CLOCKS_APART_NS)
    most = mine.device.max(initial=0) + 1
    of_device = [np.bincount(mine.device[chosen], minlength=most) for chosen in (early, linked)]
    held[:count] &= ~(early & (2 * of_device[0] < of_device[1])[mine.device])
    if held.all():
        return trace
    masks = np.split(held, np.cumsum([len(column) for column in columns[:2]]))
    kept = trace.chosen(*masks)
    kept.notes.append(Said("impossible_times", {"count": int((~held).sum())}))
    return kept


def _trim(activities: Activities, device: int) -> tuple[int, int] | None:
    """Lets an activity begin where its stream is free; returns how many were cut and by how many ns, None without."""
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


def _split(trace: Trace, threads: Sequence[Any], places: Sequence[Any]) -> list[Trace]:
    """A trace of each process that launched work or marked steps; the whole where there is one. `threads` and `places`
    are the processes of threads and devices as the file names them: torch may give the device's number."""
    host, launches = trace.host, trace.launches
    names = _names([*dict.fromkeys(threads)], [*dict.fromkeys(places)])
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names[process] for process in threads))}
    of_thread = np.array([numbers[names[process]] for process in threads], np.int64)
    marks = trace.named(lambda name: name.startswith("ProfilerStep#"))[host.name] & host.annotation
    owners = np.unique(of_thread[launches.thread if len(launches) else host.thread[marks]]).tolist()
    if len(owners) < 2:
        return [trace]
    of_place = [numbers.get(names[place], -1) for place in places]
    of_place = _assigned(trace, of_thread[launches.thread], of_place, owners)
    labels, traces = {number: str(name) for name, number in numbers.items()}, []
    said = [int(told[0]) if len(told := re.findall(r"\d+", labels[owner])) == 1 else -1 for owner in owners]
    ranks = said if len(set(said)) == len(said) and max(said) < len(said) else list(range(len(owners)))
    of_thread = np.where(np.isin(of_thread, owners), of_thread, owners[0])
    of_activity = np.array(of_place, np.int64)[trace.activities.device]
    for owner, rank in zip(owners, ranks, strict=True):
        masks = of_activity == owner, of_thread[host.thread] == owner, of_thread[launches.thread] == owner
        part = trace.chosen(*masks)
        held = [collective for collective in trace.collectives if of_place[collective[2]] == owner]
        note = Said("one_of_processes", {"process": labels[owner].strip(), "count": len(owners)})
        about = {"distributedInfo": {"rank": rank, "world_size": len(owners)}}
        metadata, notes = trace.metadata | about, [*trace.notes, note]
        traces.append(replace(part, metadata=metadata, collectives=held, notes=notes, ranks=len(owners)))
    return traces


def _names(threads: list[Any], places: list[Any]) -> dict[Any, Any]:
    """Processes' names without numbers: "[TP01] 4242" in a merged file, whose device is called "[TP01] 1"."""
    processes = set(threads)
    if all(place in processes for place in places):
        return {process: process for process in threads}
    return {name: (_NUMBER.sub("", name) or name) if isinstance(name, str) else name for name in (*threads, *places)}


def _assigned(trace: Trace, of_launch: Indices, of_place: list[int], owners: list[int]) -> list[int]:
    """The process of each place: as it is named, else whose launches precede most of what was executed there."""
    activities, launches = trace.activities, trace.launches
    taken = set(of_place)
    for place, named in enumerate(of_place):
        if named in owners:
            continue
        mine, scores = np.flatnonzero(activities.device == place), []
        for owner in owners:
            chosen = np.flatnonzero(of_launch == owner)
            begins = dict(zip(launches.correlation[chosen].tolist(), launches.begin[chosen].tolist(), strict=True))
            pairs = zip(activities.correlation[mine].tolist(), activities.begin[mine].tolist(), strict=True)
            scores.append(sum(begins.get(number, begin + 1) <= begin for number, begin in pairs))
        best = max(range(len(owners)), key=lambda number: (scores[number], owners[number] not in taken, -number))
        of_place[place] = owners[best]
        taken.add(owners[best])
    return of_place
