"""Builds `Trace`s, one per process, from the events that a format's reader finds, without events
that cannot have happened."""

import marshal
import re
from array import array
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mfulab.core.parts import Content
from mfulab.core.said import Said
from mfulab.tracing.trace import (
    Activities,
    Call,
    CallArguments,
    Chosen,
    Collective,
    HostCalls,
    Indices,
    Launches,
    Pair,
    Span,
    Times,
    Trace,
    TraceError,
    Transfer,
    grouped,
    launch_of,
    printable,
)

# A kernel that begins this long before its launch was timed by another clock.
CLOCKS_APART_NS = 1_000_000
_NUMBERS = re.compile(r"\d+")
_NUMBER = re.compile(r"\s*\d+\s*$")
PAUSE_NS = 3600 * 10**9  # no profile pauses for an hour, and no event takes one
Numbers = Sequence[int] | Indices  # one per event


class Recorder:
    """Collects events as the columns of a `Trace`; -1 stands for a number that an event does not
    have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names = defaultdict[str, int](count().__next__)
        self._threads = defaultdict[Pair, int](count().__next__)  # of each process
        # Devices of each process.
        self._places = defaultdict[Pair, int](count().__next__)
        # Flat rows of 9, 8 and 6 numbers.
        self._activities = array("q")
        self._host = array("q")
        self._launches = array("q")
        self._collectives = list[Transfer]()
        self._calls: CallArguments = {}
        self._shared: dict[bytes, Call] = {}

    def __len__(self) -> int:
        return len(self._activities) + len(self._host)

    @property
    def executed(self) -> bool:
        """True if a device executed anything."""
        return len(self._activities) > 0

    def activity(
        self,
        span: Span,
        kind: int,
        name: str,
        device: tuple[object, int],
        stream: int,
        correlation: int,
        external: int,
        blocks: int,
    ) -> None:
        """Adds one activity of a device. `kind` indexes `KINDS`, `device` is a process and a device
        of it, and `blocks` is the size of the grid, 0 if unknown."""
        numbers = [self._places[device], stream, correlation, external, blocks]
        self._activities.fromlist([*span, kind, self._names[name], *numbers])

    def activities(
        self,
        spans: Sequence[Indices],
        kinds: Sequence[int],
        names: Sequence[str],
        places: Sequence[Pair],
        numbers: Sequence[Numbers],
        collectives: dict[int, Collective],
    ) -> None:
        """Adds many activities at once. `spans` are begins and ends, `places` processes and
        devices. `numbers` are streams, correlations, external ids and blocks. `collectives` are
        keyed by index among these activities."""
        of_place = [self._places[index] for index in places]
        self._extend(self._activities, *spans, kinds, self._numbers(names), of_place, *numbers)
        for index, collective in collectives.items():
            begin, end = (int(times[index]) for times in spans)
            self._collectives.append(Transfer(begin, end, of_place[index], collective))

    def host_call(
        self,
        span: Span,
        name: str,
        thread: Pair,
        external: int,
        forward: bool,
        annotation: bool,
        call: Call | None = None,
    ) -> None:
        """Adds one operator or annotation. `thread` is a process and a thread of it; `call` holds
        the arguments, if they are recorded."""
        calls = CallArguments()
        if call is not None:
            calls[0] = call
        shared = self._shared_calls(calls)
        numbers = [external, forward, annotation, -1]
        self._host.fromlist([*span, self._names[name], self._threads[thread], *numbers])
        self._calls |= shared

    def host_calls(
        self,
        spans: Sequence[Indices],
        names: Sequence[str],
        threads: Sequence[Pair],
        numbers: Sequence[Numbers],
        calls: CallArguments,
    ) -> None:
        """Adds many operators or annotations at once. `numbers` are external ids, flags for forward
        and annotation, and sequence numbers. `calls` holds arguments by index among these calls."""
        shared = self._shared_calls(calls)
        self._extend(self._host, *spans, self._numbers(names), self._of_threads(threads), *numbers)
        self._calls |= shared

    def _shared_calls(self, calls: CallArguments) -> CallArguments:
        """Arguments of the calls that are added next, by the index that each will have. Equal
        arguments are kept once."""
        first = len(self._host) // 8
        shared = CallArguments()
        for index, call in calls.items():
            key = marshal.dumps((call.name, call.shapes, call.types, call.values), 0)
            if key not in self._shared:
                self._shared[key] = call.plain()
            shared[first + index] = self._shared[key]
        return shared

    def launch(self, span: Span, thread: Pair, correlation: int, name: str) -> None:
        """Adds one runtime call."""
        self._launches.fromlist([*span, self._threads[thread], correlation, self._names[name], -1])

    def launches(
        self,
        spans: Sequence[Indices],
        threads: Sequence[Pair],
        correlations: Numbers,
        names: Sequence[str],
        kernels: Sequence[str],
    ) -> None:
        """Adds many runtime calls at once."""
        launched = [self._names[kernel] if kernel else -1 for kernel in kernels]
        numbers = self._of_threads(threads), correlations, self._numbers(names), launched
        self._extend(self._launches, *spans, *numbers)

    def _numbers(self, names: Sequence[str]) -> list[int]:
        return [self._names[name] for name in names]

    def _of_threads(self, threads: Sequence[Pair]) -> list[int]:
        return [self._threads[thread] for thread in threads]

    @staticmethod
    def _extend(rows: array, *columns: Numbers) -> None:
        """Adds one row per element of the columns. Raises OverflowError if a number does not
        fit."""
        arrays = [np.asarray(column, np.int64) for column in columns]
        rows.frombytes(np.stack(arrays, axis=1).tobytes())

    def done(
        self, metadata: Content, events: int | None = None, notes: Sequence[Said] = ()
    ) -> list[Trace]:
        """Builds one trace per process that launched work or marked steps. Raises TraceError if
        another clock timed the kernels."""
        activities = Activities(*_columns(self._activities, 9))
        host = HostCalls(*[*_columns(self._host, 8), self._calls])
        host.forward = host.forward.astype(bool)
        host.annotation = host.annotation.astype(bool)
        launches = Launches(*_columns(self._launches, 6))
        if events is None:
            events = len(activities) + len(host) + len(launches)
        trace = Trace(
            path=self.path,
            names=list(map(printable, self._names)),
            activities=activities,
            host=host,
            launches=launches,
            metadata=metadata,
            events=events,
            collectives=self._collectives,
            notes=list(notes),
        )
        threads = [process for process, _ in self._threads]
        places = [process for process, _ in self._places]
        devices = np.array([device for _, device in self._places], np.int64)
        traces = [_checked(part, devices) for part in _split(trace, threads, places)]
        executed = [part.activities for part in traces if len(part.activities)]
        if executed:
            begin = min(int(work.begin.min()) for work in executed)
            end = max(int(work.end.max()) for work in executed)
            for part in traces:
                part.span = begin, end
        return traces


def _columns(rows: array, count: int) -> list[Any]:
    """Splits flat rows of `count` numbers each into columns."""
    return [*np.array(rows, np.int64).reshape(-1, count).T.copy()]


def _checked(trace: Trace, devices: Indices) -> Trace:
    """Completes the trace of one process: sets its devices' numbers, drops impossible events, and
    trims overlaps on a stream. Raises TraceError if another clock timed the kernels."""
    trace = _without_impossible(trace)  # while devices are still numbered from 0
    activities = trace.activities
    if len(activities):
        activities.device = devices[activities.device]
    trace.collectives = [
        replace(transfer, device=int(devices[transfer.device])) for transfer in trace.collectives
    ]
    launch = launch_of(trace)
    for device, mine in grouped(activities.device):
        linked = mine[launch[mine] >= 0]
        delays = activities.begin[linked] - trace.launches.begin[launch[linked]]
        apart = 0.0
        if len(delays):
            apart = -float(np.median(delays))
        if apart > CLOCKS_APART_NS:
            raise TraceError(trace.path, Said("clocks_apart", device=device, apart=apart / 1e9))
        if cut := _trim(activities, mine):
            trace.trimmed[device] = cut
    return trace


def _without_impossible(trace: Trace) -> Trace:
    """Drops events with impossible times; a note counts them. An activity at 0, before all that the
    host did, was never timed. An event an hour away from most others, or an hour long, has a broken
    timestamp. So has a kernel long before its launch, unless most kernels are: then the clocks
    differ."""
    columns = trace.activities, trace.host, trace.launches
    begin = np.concatenate([events.begin for events in columns])
    end = np.concatenate([events.end for events in columns])
    is_possible = end - begin < PAUSE_NS
    if is_possible.any() and begin[is_possible].max() - begin[is_possible].min() > PAUSE_NS:
        is_possible &= _is_in_largest_run(begin, is_possible)
    activities = trace.activities
    count = len(activities)
    of_activities = is_possible[:count]  # a view
    called = begin[count:][is_possible[count:]]
    if len(called) and called.min() > CLOCKS_APART_NS:
        of_activities &= activities.begin != 0
    of_activities &= ~_precedes_launch(trace, of_activities)
    if is_possible.all():
        return trace
    masks = np.split(is_possible, np.cumsum(list(map(len, columns[:2]))))
    kept = trace.chosen(*masks)
    kept.notes.append(Said("impossible_times", count=int((~is_possible).sum())))
    return kept


def _is_in_largest_run(begin: Times, is_possible: Chosen) -> Chosen:
    """True for events of the run that holds most possible ones. Runs are an hour apart."""
    order = np.argsort(begin, kind="stable")
    run = np.empty(len(begin), np.int64)
    run[order] = np.cumsum(np.diff(begin[order], prepend=begin[order[0]]) > PAUSE_NS)
    in_largest: Chosen = run == np.bincount(run[is_possible]).argmax()
    return in_largest


def _precedes_launch(trace: Trace, is_possible: Chosen) -> Chosen:
    """True for activities long before their launch, on devices where fewer than half are."""
    activities = trace.activities
    launch = launch_of(trace)
    linked = (launch >= 0) & is_possible
    launched = np.append(trace.launches.begin, 0)[launch]
    early = linked & (activities.begin < launched - CLOCKS_APART_NS)
    devices = activities.device.max(initial=0) + 1
    early_count = np.bincount(activities.device[early], minlength=devices)
    linked_count = np.bincount(activities.device[linked], minlength=devices)
    few_are = 2 * early_count < linked_count
    precedes: Chosen = early & few_are[activities.device]
    return precedes


def _trim(activities: Activities, mine: Indices) -> tuple[int, int] | None:
    """Trims device activities that overlap on one stream. Returns the number trimmed and the total
    overlap in ns, or None if there were none."""
    count = lost = 0
    mine = mine[activities.stream[mine] >= 0]
    for _, places in grouped(activities.stream[mine]):
        chosen = mine[places]
        chosen = chosen[np.lexsort((activities.end[chosen], activities.begin[chosen]))]
        begin = activities.begin[chosen]
        end = activities.end[chosen]
        before = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
        cut = np.maximum(np.minimum(before, end) - begin, 0)
        activities.begin[chosen] = begin + cut
        count += int((cut > 0).sum())
        lost += int(cut.sum())
    if count:
        return count, lost
    return None


def _split(trace: Trace, threads: Sequence[Hashable], places: Sequence[Hashable]) -> list[Trace]:
    """Splits a trace into processes that launched work or marked steps; a single one keeps
    everything. `threads` and `places` hold the process of each thread and device as the file names
    it: torch may write the device's number."""
    names = _names([*dict.fromkeys(threads)], [*dict.fromkeys(places)])
    processes = list(dict.fromkeys(names[process] for process in threads))
    numbers = {name: number for number, name in enumerate(processes)}
    of_thread = np.array([numbers[names[process]] for process in threads], np.int64)
    owners = np.unique(of_thread[_active_threads(trace)]).tolist()
    if len(owners) < 2:
        return [trace]
    of_launch = of_thread[trace.launches.thread]
    of_place = [numbers.get(names[process], -1) for process in places]
    of_place = _assigned(trace, of_launch, of_place, owners)
    of_activity = np.array(of_place, np.int64)[trace.activities.device]
    is_owned = np.isin(of_thread, owners)
    of_thread = np.where(is_owned, of_thread, owners[0])
    of_call = of_thread[trace.host.thread]
    of_launch = of_thread[trace.launches.thread]
    labels = [str(processes[owner]) for owner in owners]
    traces = list[Trace]()
    for owner, label, rank in zip(owners, labels, _ranks(labels), strict=True):
        part = trace.chosen(of_activity == owner, of_call == owner, of_launch == owner)
        part.collectives = [
            transfer for transfer in trace.collectives if of_place[transfer.device] == owner
        ]
        part.ranks = len(owners)
        distributed = {"rank": rank, "world_size": len(owners)}
        part.metadata = trace.metadata | {"distributedInfo": distributed}
        said = Said("one_of_processes", process=label.strip(), count=len(owners))
        part.notes.append(said)
        traces.append(part)
    return traces


def _active_threads(trace: Trace) -> Indices:
    """Threads of all launches; if there are none, of all marks of steps."""
    if len(trace.launches):
        return trace.launches.thread
    host = trace.host
    marks = trace.named(lambda name: name.startswith("ProfilerStep#"))[host.name]
    return host.thread[marks & host.annotation]


def _ranks(labels: Sequence[str]) -> list[int]:
    """Ranks of processes: the only number in each label, or their order if these numbers are no
    ranks."""
    found = list[int]()
    for label in labels:
        numbers = _NUMBERS.findall(label)
        found.append(int(numbers[0]) if len(numbers) == 1 else -1)
    count = len(labels)
    if len(set(found)) == count and max(found) < count:
        return found
    return list(range(count))


def _names(threads: list[Hashable], places: list[Hashable]) -> dict[Hashable, Hashable]:
    """Maps each process's name to itself, without numbers where threads and devices differ in them.
    A merged file calls a process "[TP01] 4242" and its device "[TP01] 1"."""
    processes = set(threads)
    if all(index in processes for index in places):
        return {process: process for process in threads}
    plain = dict[Hashable, Hashable]()
    for name in (*threads, *places):
        plain[name] = name
        if isinstance(name, str):
            plain[name] = _NUMBER.sub("", name) or name
    return plain


def _assigned(
    trace: Trace, of_launch: Indices, of_place: list[int], owners: list[int]
) -> list[int]:
    """Process of each device: the one in its name, else the one whose launches precede most of its
    activities."""
    activities = trace.activities
    launches = trace.launches
    taken = set(of_place)
    for index, process in enumerate(of_place):
        if process in owners:
            continue
        mine = activities.device == index
        executed = _begins(activities, mine)
        best = (-1, False)
        for owner in owners:
            launched = dict(_begins(launches, of_launch == owner))
            preceded = sum(launched.get(number, begin + 1) <= begin for number, begin in executed)
            score = preceded, owner not in taken
            if score > best:
                best = score
                of_place[index] = owner
        taken.add(of_place[index])
    return of_place


def _begins(events: Activities | Launches, mask: Chosen) -> list[tuple[int, int]]:
    """Correlation and begin of the events selected by a mask."""
    return list(zip(events.correlation[mask].tolist(), events.begin[mask].tolist(), strict=True))
