"""Shows a window's time in order: as tracks for Perfetto (budget, idle gaps with causes, MFU, the
verdict), and in a short form."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mfulab.core.errors import ConfigurationError
from mfulab.core.said import Numbers, Said
from mfulab.tracing import events
from mfulab.tracing.chrome import Stream
from mfulab.tracing.device_time import CAUSES, DeviceTime
from mfulab.tracing.formats import reader_of
from mfulab.tracing.intervals import Intervals, exclusive, within
from mfulab.tracing.trace import Times, Trace

SLICES = 240  # of a step, in the short form
POINTS = 400  # of MFU over a window
PROCESS = 900_000_000  # no system gives a process this number; that of the row is added
TRACKS = ("verdict", "budget", "idle")
_OPENING = re.compile(rb'(?:"traceEvents"\s*:\s*|\A\s*)\[')


def pieces(device_time: DeviceTime) -> dict[str, Intervals]:
    """Splits the window by kind of time. Each kind has the intervals that no earlier kind covers;
    together they fill the window."""
    kinds = {
        kind: device_time.executed.where(chosen) for kind, chosen in device_time.layers.items()
    }
    kinds["input_wait"] = device_time.waits
    parts = exclusive(list(kinds.values()), *device_time.window.span)
    return dict(zip((*kinds, "idle"), parts, strict=True))


def short(device_time: DeviceTime) -> str:
    """JSON of the first step in `SLICES` equal parts: the kind that took most of each, as runs of
    [kind, number of parts]."""
    begin = device_time.window.begin
    step_ns = device_time.window.length / device_time.window.steps
    edges = np.linspace(begin, begin + step_ns, SLICES + 1).round().astype(np.int64)
    spans = pieces(device_time)
    shares = [within(intervals, edges[:-1], edges[1:]) for intervals in spans.values()]
    names = list(spans)
    runs = list[list[str | int]]()
    for _, run in groupby(np.argmax(shares, axis=0).tolist()):
        parts = list(run)
        runs.append([names[parts[0]], len(parts)])
    return json.dumps(runs)


def mfu_over_time(
    device_time: DeviceTime, flops: dict[int, int], peak_flop_s: float
) -> tuple[Times, npt.NDArray[np.float64]]:
    """Returns `POINTS` times (ns), and the MFU in % from each to the next. `flops` holds the FLOPs
    of each product call, spread evenly over its kernels' time."""
    executed = device_time.executed
    length = executed.lengths
    kernels = np.flatnonzero((executed.product >= 0) & (length > 0))
    owners, index = np.unique(executed.product[kernels], return_inverse=True)
    total = np.bincount(index, length[kernels], len(owners))
    rate = np.array([flops.get(call, 0) for call in owners.tolist()], float)[index] / total[index]
    times = np.concatenate(executed.where(kernels))
    order = np.argsort(times, kind="stable")
    times = times[order]
    edges = np.linspace(device_time.window.begin, device_time.window.end, POINTS + 1)
    per_ns = np.zeros(POINTS)
    if len(times):
        rates = np.cumsum(np.concatenate((rate, -rate))[order])
        done = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(times))))
        per_ns = np.diff(np.interp(edges, times, done)) / np.diff(edges)
    return edges[:-1].round().astype(np.int64), 100e9 * per_ns / peak_flop_s


def tracks(
    number: int,
    device_time: DeviceTime,
    flops: dict[int, int],
    peak_flop_s: float | None,
    verdict: str,
    names: dict[str, str],
) -> Iterator[str]:
    """Yields the events of one row's tracks as JSON. `names` holds the readable names of kinds and
    causes; `verdict` is a sentence."""
    process = PROCESS + number
    yield _metadata("process_name", process, {"name": "mfulab"})
    yield _metadata("process_sort_index", process, {"sort_index": -1})
    for tid, track in enumerate(TRACKS):
        yield _metadata("thread_name", process, {"name": track}, tid=tid)
    yield _slice(verdict, device_time.window.begin, device_time.window.end, process, 0)
    for kind, spans in pieces(device_time).items():
        if kind != "idle":
            for begin, end in _rows(spans):
                yield _slice(names.get(kind, kind), begin, end, process, 1)
    idle = device_time.idle
    for index, (begin, end) in enumerate(_rows(idle.spans)):
        cause = CAUSES[idle.cause[index]]
        activity = int(idle.ended_by[index])
        ended_by = ""
        if activity >= 0:
            ended_by = device_time.trace.names[device_time.executed.name[activity]]
        yield _slice(names.get(cause, cause), begin, end, process, 2, {"ended by": ended_by})
    if peak_flop_s:
        for at, percent in _rows(mfu_over_time(device_time, flops, peak_flop_s)):
            yield _event("C", "MFU %", process, at, f',"args":{{"MFU":{percent:.3f}}}')


def _rows(columns: Iterable[npt.NDArray[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yields columns of equal length row by row, as Python values."""
    return zip(*(column.tolist() for column in columns), strict=True)


def _metadata(name: str, process: int, args: Mapping[str, object], **more: int) -> str:
    """Event that names a process or a track, as JSON."""
    return json.dumps({"ph": "M", "name": name, "pid": process, **more, "args": args})


def _slice(
    name: str, begin: int, end: int, process: int, track: int, args: dict[str, str] | None = None
) -> str:
    fields = f',"tid":{track},"dur":{_microseconds(end - begin)}'
    if args:
        fields += f',"args":{json.dumps(args)}'
    return _event("X", name, process, begin, fields)


def _event(phase: str, name: str, process: int, at: int, more: str) -> str:
    return f'{{"ph":"{phase}","cat":"mfulab","name":{json.dumps(name)},"pid":{process},"ts":{_microseconds(at)}{more}}}'


def _microseconds(time: int) -> str:
    return f"{time // 1000}.{time % 1000:03d}"


def write(target: Path, traces: Sequence[Trace], added: list[str]) -> None:
    """Writes one file's trace with the `added` events: torch.profiler's text unchanged, other
    formats converted. Raises ConfigurationError if `target` cannot be written."""
    path = traces[0].path
    try:
        with gzip.open(target, "wb") if target.suffix == ".gz" else target.open("wb") as out:
            if reader_of(path) is not events:
                written = [*added, *chain.from_iterable(map(_events, traces))]
                out.write(b'{"traceEvents":[' + ",".join(written).encode() + b"]}")
                return
            text = b""
            opening = None
            for chunk in Stream(path).chunks():
                text += chunk
                if opening is None:
                    opening = _OPENING.search(text)
                    if opening is None:
                        continue
                    at = opening.end()
                    text = text[:at] + f"{','.join(added)},".encode() + text[at:]
                out.write(text)
                text = b""
    except OSError as error:
        why: Numbers = {"file": str(target), "error": error.strerror or str(error)}
        raise ConfigurationError(Said("target_not_written", why)) from None


def _events(trace: Trace) -> Iterator[str]:
    activities = trace.activities
    host = trace.host
    executed = (activities.begin, activities.end, activities.name)
    called = (host.begin, host.end, host.name)
    of_host = np.full(len(host), PROCESS - 1)
    for table in (
        (*executed, activities.device, activities.stream),
        (*called, of_host, host.thread),
    ):
        for begin, end, name, process, track in _rows(table):
            yield _slice(trace.names[name], begin, end, process, track)
