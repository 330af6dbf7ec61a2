"""Finds the operators of kernels in replayed CUDA and HIP graphs, from the trace of the graphs'
capture. The kernels of each replay are matched with the launches of a capture, in order. If the
capture has kernel names (ROCm), names must match. Otherwise the counts must be equal, and matmul
kernels must meet matmuls."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from mfulab.core.said import Said
from mfulab.tracing.attribution import attribute
from mfulab.tracing.tiles import multiplies
from mfulab.tracing.trace import (
    COPY,
    Activities,
    Call,
    HostCalls,
    Indices,
    Trace,
    grouped,
    launch_of,
)

Pairs = list[tuple[int, int]]  # index of a kernel, index of the launch that captured it


def beside(path: Path) -> Path | None:
    """Path of the capture's trace in the folder of the replays' trace: …execution… as …capture…, or
    …_capture. None if no such file exists."""
    stem, dot, ending = path.name.partition(".")
    renamed = stem.replace("execution", "capture").replace("replay", "capture")
    for name in (f"{stem}_capture", renamed):
        capture = path.with_name(f"{name}{dot}{ending}")
        if name != stem and capture.is_file():
            return capture
    return None


def joined(trace: Trace, capture: Trace) -> Trace:
    """Returns the trace with an operator for each graph kernel that `capture` has too. A note
    counts these kernels."""
    activities = trace.activities
    launched = launch_of(trace)
    graph = trace.named(lambda name: "GraphLaunch" in name)[trace.launches.name]
    if not graph.any():
        return trace
    is_linked = launched >= 0
    kernels = np.flatnonzero(is_linked & graph[launched] & (activities.kind != COPY))
    replays = [kernels[places] for _, places in grouped(launched[kernels])]
    added = _Added(trace, capture)
    for replay in replays:
        replay = replay[np.argsort(activities.begin[replay], kind="stable")]
        begin = int(trace.launches.begin[launched[replay[0]]])
        added.replay(replay, begin)
    owned = trace.owned | added.owned
    note = Said(
        "graph_joined",
        matched=len(owned),
        count=len(kernels),
        replays=len(replays),
        file=capture.path.name,
    )
    names = list(added.names)
    return replace(trace, names=names, host=added.host(), owned=owned, notes=[*trace.notes, note])


class _Added:
    """Host calls of a capture that are added to a trace, and the kernels that each of them owns."""

    def __init__(self, trace: Trace, capture: Trace) -> None:
        self.owned = dict[int, int]()
        self.names = {name: number for number, name in enumerate(trace.names)}
        self._trace = trace
        self._capture = capture
        self._captured, self._groups = _captured(capture)
        self._owners = attribute(self._captured)
        self._calls = dict(trace.host.calls)
        self._shared = dict[tuple[int, tuple[Any, ...]], Call]()  # equal calls are kept once
        self._rows = list[tuple[int, ...]]()
        self._first_thread = int(trace.host.thread.max(initial=0)) + 1

    def replay(self, kernels: Indices, begin: int) -> None:
        """Adds the calls that own the kernels of one replay, which began at `begin` ns."""
        kernel_names = [self._trace.names[name] for name in self._trace.activities.name[kernels]]
        added = dict[int, int]()  # owner in the capture → its index in the trace
        for kernel, launch in _matched(kernel_names, self._captured, self._groups):
            owner = self._owner(launch, kernel_names[kernel])
            if owner < 0:
                continue
            if owner not in added:
                added[owner] = self._add(owner, begin)
            self.owned[int(kernels[kernel])] = added[owner]

    def _owner(self, launch: int, kernel: str) -> int:
        """Index of the call that owns a captured launch; -1 if there is none, or if a launch
        without a kernel name does not fit the kernel."""
        product = int(self._owners.product_of_activity[launch])
        is_nameless = self._captured.activities.name[launch] < 0
        if is_nameless and multiplies(kernel) != (product >= 0):
            return -1
        if product >= 0:
            return product
        return int(self._owners.operator_of_activity[launch])

    def _add(self, owner: int, begin: int) -> int:
        """Adds a call on a thread of its own, so that it lies in no other call. Returns its
        index."""
        index = len(self._trace.host) + len(self._rows)
        name = self._capture.names[self._capture.host.name[owner]]
        calls = self._capture.host.calls
        call = calls.get(owner)
        if call:
            innermost = self._owners.innermost.get(owner, owner)
            types = calls.get(innermost, call).types
            key = id(call), types
            if key not in self._shared:
                self._shared[key] = Call(name, call.shapes, types, call.values)
            self._calls[index] = self._shared[key]
        number = self.names.setdefault(name, len(self.names))
        thread = self._first_thread + len(self._rows)
        # In the order of the columns of `HostCalls`.
        self._rows.append((begin, begin, number, thread, -1, 0, 0, -1))
        return index

    def host(self) -> HostCalls:
        """Returns the trace's host calls, followed by the added ones."""
        columns = np.array(self._rows, np.int64).reshape(-1, 8).T
        extended: list[Any] = []
        for old, new in zip(self._trace.host.columns(), columns, strict=True):
            extended.append(np.concatenate((old, new.astype(old.dtype))))
        return HostCalls(*[*extended, self._calls])


def _captured(capture: Trace) -> tuple[Trace, list[Indices]]:
    """Turns the capture's kernel launches that executed nothing into activities. Returns that
    trace, and the activities' indices per graph."""
    launches = capture.launches
    linked = np.isin(launches.correlation, capture.activities.correlation)
    is_launch = capture.named(
        lambda name: "Launch" in name and "Graph" not in name and "HostFunc" not in name
    )
    chosen = np.flatnonzero(is_launch[launches.name] & ~linked)
    chosen = chosen[np.argsort(launches.begin[chosen], kind="stable")]
    begin = launches.begin[chosen]
    none = np.full(len(chosen), -1)
    zero = np.zeros(len(chosen), np.int64)
    made = Activities(
        begin=begin,
        end=begin,
        kind=zero,
        name=launches.kernel[chosen],
        device=zero,
        stream=zero,
        correlation=launches.correlation[chosen],
        external=none,
        blocks=zero,
    )
    is_end = capture.named(lambda name: "EndCapture" in name)[launches.name]
    ends = np.sort(launches.begin[is_end])
    index = np.searchsorted(ends, begin)
    groups = [np.flatnonzero(index == graph) for graph in np.unique(index)]
    return replace(capture, activities=made), groups


def _matched(kernels: Sequence[str], captured: Trace, groups: Sequence[Indices]) -> Pairs:
    """Pairs the kernels of one replay with the launches of the captured graph that matches most of
    them."""
    best: Pairs = []
    for group in groups:
        names = captured.activities.name[group]
        pairs: Pairs = []
        has_names = bool((names >= 0).all())
        if has_names:
            pairs = _alike(kernels, [captured.names[name] for name in names], group)
        elif len(group) == len(kernels):
            pairs = list(enumerate(group.tolist()))
        if len(pairs) > len(best):
            best = pairs
        if len(best) == len(kernels):
            break
    return best


def _alike(kernels: Sequence[str], names: Sequence[str], group: Indices) -> Pairs:
    """Pairs kernels with launches of the same names, in order."""
    pairs = Pairs()
    for block in SequenceMatcher(None, kernels, names, autojunk=False).get_matching_blocks():
        launched = group[block.b : block.b + block.size].tolist()
        pairs += enumerate(launched, start=block.a)
    return pairs
