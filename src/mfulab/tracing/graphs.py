"""Gives the kernels of replayed CUDA and HIP graphs the operators that the trace of their capture holds. Each replay's
kernels are joined with the launches of a capture, in order: by their kernels' names where the capture has them (ROCm),
else only where their numbers are equal and matmul kernels meet matmuls."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from mfulab.core.said import Said
from mfulab.tracing.attribution import attribute
from mfulab.tracing.tiles import multiplies
from mfulab.tracing.trace import COPY, Activities, Call, HostCalls, Indices, Trace, launch_of


def beside(path: Path) -> Path | None:
    """The trace of the capture beside that of the replays: …execution… as …capture…, or …_capture; None without."""
    stem, dot, ending = path.name.partition(".")
    names = (f"{stem}_capture", stem.replace("execution", "capture").replace("replay", "capture"))
    paths = (path.with_name(f"{name}{dot}{ending}") for name in names if name != stem)
    return next((capture for capture in paths if capture.is_file()), None)


def joined(trace: Trace, capture: Trace) -> Trace:
    """The trace with an operator for each kernel of a graph that `capture` has too; its notes say how many."""
    activities, launched = trace.activities, launch_of(trace)
    graph = trace.named(lambda name: "GraphLaunch" in name)[trace.launches.name]
    if not graph.any():
        return trace
    kernels = np.flatnonzero((launched >= 0) & graph[launched] & (activities.kind != COPY))
    replays = [kernels[launched[kernels] == launch] for launch in np.unique(launched[kernels])]
    captured, groups = _captured(capture)
    owners = attribute(captured)
    product, operator = owners.product_of_activity, owners.operator_of_activity
    rows, calls = list[tuple[int, ...]](), dict(trace.host.calls)
    names, owned = {name: number for number, name in enumerate(trace.names)}, dict(trace.owned)
    first_thread = int(trace.host.thread.max(initial=0)) + 1
    for replay in replays:
        replay = replay[np.argsort(activities.begin[replay], kind="stable")]
        given: dict[int, int] = {}
        begin = int(trace.launches.begin[launched[replay[0]]])
        for kernel, launch in _matched([trace.names[name] for name in activities.name[replay]], captured, groups):
            owner = int(product[launch] if product[launch] >= 0 else operator[launch])
            multiplied = multiplies(trace.names[activities.name[replay[kernel]]])
            if owner < 0 or (captured.activities.name[launch] < 0 and multiplied != (product[launch] >= 0)):
                continue
            if owner not in given:
                given[owner] = len(trace.host) + len(rows)
                name = capture.names[capture.host.name[owner]]
                if call := capture.host.calls.get(owner):
                    inner = capture.host.calls.get(owners.innermost.get(owner, owner), call)
                    calls[given[owner]] = Call(name, call.shapes, inner.types, call.values)
                thread = first_thread + len(rows)  # of its own: a call lies in no other
                rows.append((begin, begin, names.setdefault(name, len(names)), thread, -1, 0, 0, -1))
            owned[int(replay[kernel])] = given[owner]
    added, (*columns, _) = np.array(rows, np.int64).reshape(-1, 8).T, vars(trace.host).values()
    pairs = zip(columns, added, strict=True)
    extended: list[Any] = [np.concatenate((old, new.astype(old.dtype))) for old, new in pairs]
    counts: dict[str, float | str | None] = {"matched": len(owned), "count": len(kernels), "replays": len(replays)}
    return replace(
        trace,
        names=list(names),
        host=HostCalls(*[*extended, calls]),
        owned=owned,
        notes=[*trace.notes, Said("graph_joined", counts | {"file": capture.path.name})],
    )


def _captured(capture: Trace) -> tuple[Trace, list[Indices]]:
    """The capture with its kernel launches that executed nothing as activities, and these by graph."""
    launches = capture.launches
    linked = np.isin(launches.correlation, capture.activities.correlation)
    is_launch = capture.named(lambda name: "Launch" in name and "Graph" not in name and "HostFunc" not in name)
    chosen = np.flatnonzero(is_launch[launches.name] & ~linked)
    chosen = chosen[np.argsort(launches.begin[chosen], kind="stable")]
    none = np.full(len(chosen), -1)
    begin, zero = launches.begin[chosen], np.zeros(len(chosen), np.int64)
    made = Activities(begin, begin, zero, launches.kernel[chosen], zero, zero, launches.correlation[chosen], none, zero)
    ends = launches.begin[capture.named(lambda name: "EndCapture" in name)[launches.name]]
    place = np.searchsorted(np.sort(ends), begin)
    return replace(capture, activities=made), [np.flatnonzero(place == graph) for graph in np.unique(place)]


def _matched(kernels: Sequence[str], captured: Trace, groups: Sequence[Indices]) -> list[tuple[int, int]]:
    """Places of kernels of one replay with those of the launches that captured them, of the graph that fits best."""
    best: list[tuple[int, int]] = []
    for group in groups:
        held = captured.activities.name[group]
        if (held < 0).any():
            pairs = [(place, int(launch)) for place, launch in enumerate(group)] if len(group) == len(kernels) else []
        else:
            names = [captured.names[name] for name in held]
            blocks = SequenceMatcher(None, kernels, names, autojunk=False).get_matching_blocks()
            pairs = [(block.a + n, int(group[block.b + n])) for block in blocks for n in range(block.size)]
        if len(pairs) > len(best):
            best = pairs
        if len(best) == len(kernels):
            break
    return best
