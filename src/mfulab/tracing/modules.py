"""A step's time and FLOPs by the model's modules and by marked ranges; and the sizes of its collectives.

torch.profiler records modules with `with_stack=True` or `with_modules=True`, as `nn.Module: NAME_NUMBER`; ranges are
those of `record_function` and NVTX. Work of a backward pass belongs to the module of the forward operator that has its
sequence number. Each nanosecond in which the device was busy belongs to one module, or to none.
"""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mfulab.tracing.attribution import BACKWARD, Attribution
from mfulab.tracing.attribution import _around as around
from mfulab.tracing.chrome import Stream
from mfulab.tracing.events import _Reader as Reader
from mfulab.tracing.events import _span as span_of
from mfulab.tracing.events import _thread as thread_of
from mfulab.tracing.formats import is_chrome
from mfulab.tracing.recording import Indices, Recording, Times, launch_of
from mfulab.tracing.shares import LOADER
from mfulab.tracing.window import STEPS, Window

MODULE, COLLECTIVE = "nn.Module: ", "Collective name"
# Bytes of torch's types as it names them in a trace; others have no size here.
BYTES = {"Bool": 1, "Byte": 1, "Char": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8}
BYTES |= {"Double": 8, "Float8_e4m3fn": 1, "Float8_e5m2": 1}
_NOT_RANGES = (STEPS, "ProfilerStep#", "gloo:", "nccl:")
_CHUNK = 1 << 22
MOST_MODULES = 60  # that a row keeps


Collective = tuple[str, int, int]  # its kind, the bytes of its larger side, and how many processes take part


@dataclass(frozen=True)
class Module:
    """Time in the device's kernels, ns of a window, and FLOPs, of the calls of one path of names and all below it.

    Alike siblings are one: a layer that a model calls 24 times has 24 `calls`. On a CPU the time is the host's.
    """

    path: tuple[str, ...]
    calls: int
    time_ns: int
    flops: int


@dataclass(frozen=True)
class Spans:
    """Ranges on the host, and calls of the backward pass: `sequence` is theirs, -1 of a range.

    `forward` holds of each sequence number the time and thread of the last operator that had it, `collectives` of each
    kernel begin, end, device, and its (kind, bytes, processes).
    """

    begin: Times
    end: Times
    thread: Indices
    sequence: Indices
    names: list[str]
    forward: dict[int, tuple[int, int]]
    collectives: list[tuple[int, int, int, Collective]]


def spans_of(recording: Recording) -> Spans:
    """Takes ranges from the recording, and reads modules and collectives: again the file's time, if it holds any."""
    host, found = recording.host, list[tuple[int, int, int, int, str]]()
    for one in np.flatnonzero(host.annotation).tolist():
        name = recording.names[host.name[one]]
        name = name.removeprefix(MODULE).rpartition("_")[0] if name.startswith(MODULE) else name
        if not name.startswith(_NOT_RANGES) and not LOADER.search(name):
            found.append((int(host.begin[one]), int(host.end[one]), int(host.thread[one]), -1, name))
    forward: dict[int, tuple[int, int]] = {}
    collectives: list[tuple[int, int, int, Collective]] = []
    if is_chrome(recording.path) and _holds(recording.path, MODULE, COLLECTIVE):
        reader = Reader(recording.path)
        for batch in Stream(recording.path).batches():
            reader.take(batch)
            for event in batch:
                if isinstance(event, dict) and (span := span_of(event)) is not None:
                    _take(event, span, reader.recorder._thread(thread_of(event)), found, forward)
                    if (told := _collective(event)) is not None:
                        collectives.append((*span, *told))
    begin, end, threads, sequence = np.array([one[:4] for one in found], np.int64).reshape(-1, 4).T
    return Spans(begin, end, threads, sequence, [name for *_, name in found], forward, collectives)


def _take(
    event: dict[str, Any], span: tuple[int, int], thread: int, found: list[Any], forward: dict[int, tuple[int, int]]
) -> None:
    name, category = str(event.get("name", "")), event.get("cat")
    if category == "python_function" and name.startswith(MODULE):
        found.append((*span, thread, -1, name.removeprefix(MODULE).rpartition("_")[0]))
    elif category == "cpu_op" and isinstance(number := (event.get("args") or {}).get("Sequence number"), int):
        if name.startswith(BACKWARD):
            found.append((*span, thread, number, ""))
        elif not event["args"].get("Fwd thread id") and span[0] >= forward.get(number, (0, 0))[0]:
            forward[number] = span[0], thread


def _collective(event: dict[str, Any]) -> tuple[int, Collective] | None:
    """Device, and what it sends, of a kernel that torch describes as a collective."""
    args = event.get("args") or {}
    if event.get("cat") != "kernel" or COLLECTIVE not in args:
        return None
    counts = [args.get(name) for name in ("In msg nelems", "Out msg nelems", "Group size")]
    known = [one for one in counts if isinstance(one, int) and one >= 0]
    if args.get("dtype") not in BYTES or len(known) < len(counts):
        return None
    sent, received, processes = known
    device = args.get("device")
    kind = str(args[COLLECTIVE]).strip("_").replace("_", "").lower()
    return device if isinstance(device, int) else -1, (kind, BYTES[args["dtype"]] * max(sent, received), processes)


def collective_times(spans: Spans, window: Window, device: int | None = None) -> dict[Collective, list[int]]:
    """Nanoseconds of the kernels of each kind and size of collective in a window, in order of their begin."""
    found: dict[Collective, list[int]] = {}
    for begin, end, on, what in sorted(spans.collectives):
        if window.begin <= begin < window.end and device in (None, on):
            found.setdefault(what, []).append(end - begin)
    return found


def _holds(path: Path, *words: str) -> bool:
    """Looks for words that begin a text in a file, without reading it as JSON."""
    wanted = [f'"{word}'.encode() for word in words]
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        before = b""
        while chunk := file.read(_CHUNK):
            if any(word in before + chunk for word in wanted):
                return True
            before = chunk[-max(map(len, wanted)) :]
    return False


def by_module(
    recording: Recording, attribution: Attribution, window: Window, spans: Spans, device: int | None = None
) -> list[Module]:
    """Every module and range with what lies in it, each before its parts, the longest first; none without any.

    The first, of no name, is all that the device did, on a CPU the window: what its parts leave belongs to no module.
    """
    if not len(spans.begin):
        return []
    order = np.lexsort((-spans.end, spans.begin, spans.thread))
    parent = _parents(spans, order)

    def at(times: Times, threads: Indices) -> Indices:
        return around(spans.begin, spans.end, spans.thread, parent, order, times, threads)

    paths = _paths(spans, order, parent, at)
    host, activities = recording.host, recording.activities
    owner, time = at(host.begin, host.thread), Counter[tuple[str, ...]]()
    roots = np.flatnonzero((attribution.product == np.arange(len(host))) & window.called(host.begin))
    if len(activities):
        launch, called = launch_of(recording), attribution.of_activity
        launched = at(recording.launches.begin, recording.launches.thread)
        of_activity = np.where(called >= 0, owner[called], -1) if len(owner) else np.full(len(activities), -1)
        of_activity = np.where(launch >= 0, launched[launch], of_activity) if len(launched) else of_activity
        inside = (activities.end > window.begin) & (activities.begin < window.end)
        inside &= (device is None) | (activities.device == device)
        mine = np.flatnonzero(inside)
        mine = mine[np.argsort(activities.begin[mine], kind="stable")]
        end = np.minimum(activities.end[mine], window.end)
        reached = np.concatenate(([window.begin], np.maximum.accumulate(end)[:-1]))[: len(mine)]
        lengths = np.maximum(end - np.maximum(activities.begin[mine], reached), 0)
        for one, length in zip(of_activity[mine].tolist(), lengths.tolist(), strict=True):
            time[paths[one] if one >= 0 else ()] += length
        products, first = np.unique(attribution.product_of_activity()[mine], return_index=True)
        owner[products[products >= 0]] = of_activity[mine][first[products >= 0]]
        roots = roots[np.isin(roots, products)]
    else:
        for one, length in enumerate(_own_times(spans, parent, window)):
            time[paths[one]] += length
        time[()] += window.length - sum(time.values())
    flops = Counter[tuple[str, ...]]()
    for root in roots[~attribution.recomputed[roots]].tolist():
        recorded = attribution.costs.get(id(host.calls.get(root)))
        if recorded is not None and recorded.cost is not None:
            flops[paths[owner[root]] if owner[root] >= 0 else ()] += recorded.cost.flops
    counts = window.called(spans.begin) & (spans.sequence < 0)
    calls = Counter(paths[one] for one in np.flatnonzero(counts).tolist())
    return _tree(calls, time, flops)


def _parents(spans: Spans, order: Indices) -> Indices:
    """The span around each one on its thread; -1 where none is."""
    parent, stack = np.full(len(order), -1), list[int]()
    for one in order.tolist():
        while stack and (spans.thread[stack[-1]] != spans.thread[one] or spans.end[stack[-1]] < spans.end[one]):
            stack.pop()
        parent[one] = stack[-1] if stack else -1
        stack.append(one)
    return parent


def _paths(spans: Spans, order: Indices, parent: Indices, at: Any) -> list[tuple[str, ...]]:
    """Names from the outermost span to each; a call of the backward pass has its forward operator's."""
    paths: list[tuple[str, ...]] = [()] * len(order)
    backward = []
    for one in order.tolist():
        above = paths[parent[one]] if parent[one] >= 0 else ()
        paths[one] = above if spans.sequence[one] >= 0 else (*above, spans.names[one])
        if (place := spans.forward.get(int(spans.sequence[one]))) is not None:
            backward.append((one, *place))
    if backward:
        ones, times, threads = np.array(backward, np.int64).T
        for one, found in zip(ones.tolist(), at(times, threads).tolist(), strict=True):
            if found >= 0:
                paths[one] = paths[found]
    return paths


def _own_times(spans: Spans, parent: Indices, window: Window) -> list[int]:
    """Nanoseconds of each span in the window without those inside it, of the thread that has most of them."""
    begin, end = np.clip(spans.begin, window.begin, window.end), np.clip(spans.end, window.begin, window.end)
    lengths = end - begin
    outer = np.bincount(spans.thread, np.where(parent < 0, lengths, 0))
    own = np.where(spans.thread == outer.argmax(), lengths, 0)
    inner = np.bincount(parent[parent >= 0], own[parent >= 0], len(own)).astype(np.int64)
    return (own - inner).tolist()


def _tree(calls: Counter[Any], time: Counter[Any], flops: Counter[Any]) -> list[Module]:
    sums = [Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()]
    for total, own in zip(sums, (time, flops), strict=True):
        for path, value in own.items():
            for length in range(len(path) + 1):
                total[path[:length]] += value
    known = {path: Module(path, calls[path], sums[0][path], sums[1][path]) for path in {(), *calls, *sums[0]}}
    below: dict[tuple[str, ...], list[Module]] = {}
    for one in known.values():
        if one.path:
            below.setdefault(one.path[:-1], []).append(one)

    def walk(path: tuple[str, ...]) -> list[Module]:
        parts = sorted(below.get(path, ()), key=lambda one: (-one.time_ns, one.path))
        return [known[path], *(each for one in parts for each in walk(one.path))]

    return walk(())


def column_of(modules: Sequence[Module]) -> str | None:
    """JSON: the longest modules, each before its parts."""
    kept = sorted(modules, key=lambda one: (-one.time_ns, len(one.path)))[:MOST_MODULES]
    found = [{**vars(one), "path": list(one.path)} for one in modules if one in kept]
    return json.dumps(found, ensure_ascii=False) if found else None
