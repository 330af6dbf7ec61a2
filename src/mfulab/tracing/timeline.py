"""A trace's time in order: tracks for Perfetto (budget, idle gaps with causes, MFU, the verdict), and a short form."""

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mfulab.core.errors import ConfigurationError
from mfulab.tracing import events
from mfulab.tracing.chrome import Stream
from mfulab.tracing.device_time import CAUSES, DeviceTime
from mfulab.tracing.formats import reader_of
from mfulab.tracing.intervals import Intervals, exclusive, within
from mfulab.tracing.shares import SPENT, waits
from mfulab.tracing.trace import Times, Trace

PARTS = 240  # of a step, in the short form
POINTS = 400  # of MFU over a window
PROCESS = 900_000_000  # a process's number that no system gives; that of the device is added
TRACKS = ("verdict", "budget", "idle")
_OPENING = re.compile(rb'(?:"traceEvents"\s*:\s*|\A\s*)\[')


def pieces(told: DeviceTime) -> dict[str, Intervals]:
    """The window in order: of each kind of time the stretches that no kind before it covers; together they are it."""
    kinds = [*map(told.where, told.layers), waits(told.trace)]
    return dict(zip(SPENT, exclusive(kinds, *told.window.span), strict=True))


def short(told: DeviceTime) -> str:
    """JSON: what took most of each of `PARTS` equal parts of the first step, as [kind, how many in a row]."""
    begin = told.window.begin
    edges = np.linspace(begin, begin + told.window.length / told.window.steps, PARTS + 1).round().astype(np.int64)
    spans = pieces(told)
    most = np.argmax([within(intervals, edges[:-1], edges[1:]) for intervals in spans.values()], axis=0)
    starts = np.flatnonzero(np.diff(most, prepend=-1))
    names = list(spans)
    return json.dumps([[names[most[at]], int(n)] for at, n in zip(starts, np.diff([*starts, PARTS]), strict=True)])


def mfu_over_time(told: DeviceTime, flops: dict[int, int], peak_flop_s: float) -> tuple[Times, Any]:
    """`POINTS` times, ns, and MFU in % between them: a product's `flops`, by call, lie evenly on its kernels' time."""
    length = told.end - told.begin
    kernels = np.flatnonzero((told.product >= 0) & (length > 0))
    owners, place = np.unique(told.product[kernels], return_inverse=True)
    whole = np.bincount(place, length[kernels], len(owners))
    rate = np.array([flops.get(call, 0) for call in owners.tolist()], float)[place] / whole[place]
    times = np.concatenate((told.begin[kernels], told.end[kernels]))
    order = np.argsort(times, kind="stable")
    times = times[order]
    done = np.concatenate(([0.0], np.cumsum(np.cumsum(np.concatenate((rate, -rate))[order])[:-1] * np.diff(times))))
    edges = np.linspace(told.window.begin, told.window.end, POINTS + 1)
    per_ns = np.diff(np.interp(edges, times, done[: len(times)])) / np.diff(edges) if len(times) else np.zeros(POINTS)
    return edges[:-1].round().astype(np.int64), 100e9 * per_ns / peak_flop_s


def tracks(
    number: int, told: DeviceTime, flops: dict[int, int], peak_flop_s: float | None, verdict: str, names: dict[str, str]
) -> Iterator[str]:
    """Events, as JSON, of one row's tracks; `names` are those of kinds and causes, `verdict` is a sentence."""
    process = PROCESS + number
    yield json.dumps({"ph": "M", "name": "process_name", "pid": process, "args": {"name": "mfulab"}})
    yield json.dumps({"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": -1}})
    for number, track in enumerate(TRACKS):
        yield json.dumps({"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": track}})
    yield _slice(verdict, told.window.begin, told.window.end, process, 0)
    for kind, spans in pieces(told).items():
        if kind != "idle":
            for begin, end in zip(*(times.tolist() for times in spans), strict=True):
                yield _slice(names.get(kind, kind), begin, end, process, 1)
    trace = told.trace
    for place, (begin, end) in enumerate(zip(told.idle.begin.tolist(), told.idle.end.tolist(), strict=True)):
        cause, last = CAUSES[told.cause[place]], int(told.ended[place])
        ended_by = trace.names[trace.activities.name[told.inside[last]]] if last >= 0 else ""
        yield _slice(names.get(cause, cause), begin, end, process, 2, {"ended by": ended_by})
    if peak_flop_s:
        for at, percent in zip(*(column.tolist() for column in mfu_over_time(told, flops, peak_flop_s)), strict=True):
            yield _event("C", "MFU %", process, at, f',"args":{{"MFU":{percent:.3f}}}')


def _slice(name: str, begin: int, end: int, process: int, track: int, args: dict[str, str] | None = None) -> str:
    told = f',"args":{json.dumps(args)}' if args else ""
    return _event("X", name, process, begin, f',"tid":{track},"dur":{_microseconds(end - begin)}{told}')


def _event(phase: str, name: str, process: int, at: int, more: str) -> str:
    return f'{{"ph":"{phase}","cat":"mfulab","name":{json.dumps(name)},"pid":{process},"ts":{_microseconds(at)}{more}}}'


def _microseconds(time: int) -> str:
    return f"{time // 1000}.{time % 1000:03d}"


def write(target: Path, traces: Sequence[Trace], added: list[str]) -> None:
    """Writes one file's trace with `added` events: torch.profiler's text as it is, that of another trace format as it
    was read. Raises ConfigurationError where `target` cannot be written."""
    path = traces[0].path
    try:
        with gzip.open(target, "wb") if target.suffix == ".gz" else target.open("wb") as out:
            if reader_of(path) is not events:
                held = (event for trace in traces for event in _activities(trace))
                out.write(b'{"traceEvents":[' + ",".join([*added, *held]).encode() + b"]}")
                return
            text, opened = b"", False
            for chunk in Stream(path).chunks():
                text += chunk
                if not opened and (opening := _OPENING.search(text)):
                    text, opened = text[: opening.end()] + f"{','.join(added)},".encode() + text[opening.end() :], True
                if opened:
                    out.write(text)
                    text = b""
    except OSError as error:
        raise ConfigurationError(f"{target}: cannot be written: {error.strerror or error}") from None


def _activities(trace: Trace) -> Iterator[str]:
    activities, host = trace.activities, trace.host
    columns = (activities.begin, activities.end, activities.name, activities.device, activities.stream)
    for table in (columns, (host.begin, host.end, host.name, np.full(len(host), PROCESS - 1), host.thread)):
        for begin, end, name, process, track in zip(*(column.tolist() for column in table), strict=True):
            yield _slice(trace.names[name], begin, end, process, track)
