"""Splits a window's time by what a device executed in it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfulab.core.said import Said
from mfulab.device.samplers.reading import Readings
from mfulab.tracing import shares
from mfulab.tracing.attribution import COMPILED
from mfulab.tracing.intervals import (
    NONE,
    Intervals,
    clip,
    gaps,
    in_turn,
    join,
    length,
    union,
    within,
)
from mfulab.tracing.of_window import OfWindow
from mfulab.tracing.shares import MULTIPLYING, SPENT, KernelRow, operator_name
from mfulab.tracing.trace import COMMUNICATION, COMPUTE, COPY, KINDS, Indices

LONG_NS = 1_000_000  # in a longer gap the host did something else: no launch takes 1 ms
LONGEST_GAPS = 5
MOST_OF_GRAPHS = 0.1  # of compute time: with more of it in graphs, operators have no shares
# Why the device was idle, by the activity that ended the gap: it was launched late, after the host
# had waited for the device or without that; it was launched in time and waited in its queue; or
# the trace links it to no launch.
CAUSES = ("synchronisation", "starved", "queued", "unlinked")
Part = tuple[str, str, str]  # kind of time, operator, kernel or cause, and shapes


class Owned(NamedTuple):
    """Activities that one host call owns, or activities without a call that share a kernel's
    name."""

    key: int  # index of the host call; if negative, of the kernel's name from the end of the names
    time_ns: int  # exclusive
    kernel_ns: int  # summed, overlapped or not
    kernels: int

    @property
    def is_call(self) -> bool:
        """True if a host call owns the activities."""
        return self.key >= 0

    @property
    def calls(self) -> int:
        """Number of calls: 1, or that of the kernels if no host call owns them."""
        if self.is_call:
            return 1
        return self.kernels


def shapes_text(shapes: Sequence[Any]) -> str:
    """Formats the shapes of a call as 64×32·32×8; a list of tensors is flattened."""
    flat = list[Any]()
    for shape in shapes:
        flat += shape if shape and isinstance(shape[0], list) else [shape]
    return "·".join("×".join(map(str, dims)) for dims in flat if dims)


class DeviceTime:
    """Splits a window's time by what the device executed in it."""

    def __init__(self, facts: OfWindow, counted: set[int], device: int | None) -> None:
        self._facts = facts
        self.trace = trace = facts.trace
        self.window = window = facts.window
        self.waits = facts.waits
        attribution = facts.attribution
        activities = trace.activities
        self.inside = facts.executed(device)
        self.kind = activities.kind[self.inside]
        self.begin = activities.begin[self.inside]
        self.end = activities.end[self.inside]
        self.product = attribution.product_of_activity[self.inside]
        self.operator = attribution.operator_of_activity[self.inside]
        self.graph = attribution.by_graph[self.inside]
        self.launched = facts.launched[self.inside]
        compute = self.kind == COMPUTE
        # Kernels without an operator, or whose operator has no formula, are recognised by name.
        named = facts.multiplies[activities.name[self.inside]]
        named &= ~attribution.by_optimizer[self.inside]
        self.multiplied = compute & ~self.graph & ((self.product >= 0) | named)
        has_flops = np.isin(self.product, np.fromiter(counted, np.int64, len(counted)))
        has_flops &= self.product >= 0
        recomputed = has_flops & facts.recomputed[self.product]
        self.layers = {
            "products": self.multiplied & has_flops & ~recomputed,
            "recomputed": self.multiplied & recomputed,
            "uncounted": self.multiplied,
            "others": compute & ~self.graph,
            "graph": compute,
            "communication": self.kind == COMMUNICATION,
            "copies": self.kind == COPY,
        }
        self.idle = gaps(union(clip(Intervals(self.begin, self.end), *window.span)), *window.span)
        self.ended, self.cause = self._ends()
        waiting = union(facts.waits)  # waiting for a DataLoader counts as input_wait instead
        idle = self.idle.end - self.idle.begin - within(waiting, *self.idle)
        self.idle_causes = dict[str, int]()
        for index, name in enumerate(CAUSES):
            self.idle_causes[name] = int(idle[self.cause == index].sum())
        self.launched_by: dict[Part, list[Owned]] = {}
        self._shapes = dict[int, str]()
        self.parts = self._parts()
        self.spent = dict.fromkeys(SPENT, 0)
        for (kind, *_), time in self.parts.items():
            self.spent[kind] += time

    def where(self, chosen: Any) -> Intervals:
        """Intervals of some of the activities, chosen by mask or index."""
        return Intervals(self.begin[chosen], self.end[chosen])

    def _ends(self) -> tuple[Any, Any]:
        """For each idle gap, the index into `inside` of the activity that ended it, or -1, and the
        index of its cause in `CAUSES`."""
        # The last gap may end with the window: -1.
        order = np.append(np.argsort(self.begin, kind="stable"), -1)
        ended = order[np.searchsorted(self.begin[order[:-1]], self.idle.end, side="left")]
        launches = self.trace.launches
        launch = np.append(self.launched, -1)[ended]
        cause = np.full(len(ended), CAUSES.index("unlinked"))
        if not (launch >= 0).any():
            return ended, cause
        cause[launch >= 0] = CAUSES.index("queued")
        late = (launch >= 0) & (launches.begin[launch] >= self.idle.begin)
        cause[late] = CAUSES.index("starved")
        late_gaps = np.flatnonzero(late)
        threads = launches.thread[launch[late_gaps]]
        waiting = self._facts.synchronising.at(self.idle.begin[late_gaps], threads) >= 0
        cause[late_gaps[waiting]] = CAUSES.index("synchronisation")
        return ended, cause

    def longest_gaps(self) -> list[tuple[str, int, str]]:
        """Cause and length (ns) of the longest idle gaps, and the operator or kernel that ended
        each; an empty name if the window ended it."""
        lengths = self.idle.end - self.idle.begin
        owner = self.operator
        kernels = self.trace.activities.name[self.inside]
        named = np.where(owner < 0, kernels, self._facts.host_names[owner])
        found = list[tuple[str, int, str]]()
        for gap in np.argsort(-lengths, kind="stable")[:LONGEST_GAPS].tolist():
            ended_by = self.ended[gap]
            name = ""
            if ended_by >= 0:
                name = self.trace.names[named[ended_by]]
            found.append((CAUSES[self.cause[gap]], int(lengths[gap]), name))
        return found

    def readings(self) -> Readings:
        """Shares of the window, gaps and launches, by column; a value that is None has its
        reason."""
        spent = self.spent
        wall = self.window.length
        compute = sum(spent[name] for name in SPENT[: SPENT.index("communication")])
        communication = union(clip(self.where(self.kind == COMMUNICATION), *self.window.span))
        lengths = self.idle.end - self.idle.begin
        times = {
            "kernel_busy_percent": compute + spent["communication"],
            "compute_busy_percent": compute,
            "copy_percent": spent["copies"],
            "communication_percent": spent["communication"],
            "idle_percent": spent["idle"] + spent["input_wait"],
            "communication_total_percent": length(communication),
        }
        values = {
            "launch_gaps_per_step": len(lengths) / self.window.steps,
            "launch_gap_s": float(np.median(lengths)) / 1e9 if len(lengths) else 0.0,
        }
        absent = Readings()
        if (self.launched >= 0).any():
            # The host caused a gap if the activity that ended it was launched after the gap began.
            late = self.cause <= CAUSES.index("starved")
            times["launch_bound_percent"] = int(lengths[late & (lengths < LONG_NS)].sum())
        else:
            why = Said("no_launch_linked")
            absent |= shares.readings({"launch_bound_percent": None}, reason=why)
        if reason := self._without_operators(compute):
            absent |= shares.readings(dict.fromkeys(shares.OF_OPERATORS), reason=reason)
        else:
            times |= {
                "matmul_percent": shares.multiplying(spent),
                "other_operators_percent": spent["others"],
            }
        for name, time in times.items():
            values[name] = 100 * time / wall
        return absent | shares.readings(values, window_s=wall / 1e9)

    def _without_operators(self, compute: int) -> Said | None:
        """Reason why operators have no shares of the window; None if they have."""
        if not compute:
            return Said("no_compute_kernel")
        if self.spent["graph"] > MOST_OF_GRAPHS * compute:
            share = 100 * self.spent["graph"] / compute
            return Said("mostly_by_graph", {"share": share})
        operators = np.unique(self.operator[self.operator >= 0])
        compiled = self.trace.named(lambda name: name.startswith(COMPILED))
        if not self.multiplied.any() and compiled[self.trace.host.name[operators]].any():
            return Said("inside_compiled")
        return None

    def _parts(self) -> dict[Part, int]:
        """Nanoseconds per kind of time, operator and shapes, and of idle time per cause. Where
        activities overlap, the first kind in `SPENT` counts."""
        parts = Counter[Part]()
        covered = NONE
        left = np.ones(len(self.begin), bool)
        for kind, chosen in self.layers.items():
            mine = np.flatnonzero(chosen & left)
            mine = mine[np.argsort(self.begin[mine], kind="stable")]
            left[mine] = False
            for owned in self._owned(kind, mine, covered):
                part = kind, *self._named(owned)
                parts[part] += owned.time_ns
                self.launched_by.setdefault(part, []).append(owned)
            covered = union(join([covered, clip(self.where(chosen), *self.window.span)]))
        for cause, time in self.idle_causes.items():
            parts["idle", cause, ""] = time
        parts["input_wait", "", ""] = length(self.idle) - sum(self.idle_causes.values())
        return {part: time for part, time in parts.items() if time}

    def _owned(self, kind: str, mine: Indices, covered: Intervals) -> Iterator[Owned]:
        """Groups activities by their owner; their exclusive time leaves out what `covered`
        holds."""
        begin, end = in_turn(self.begin[mine], self.end[mine], *self.window.span)
        exclusive = end - begin - within(covered, begin, end)
        lengths = self.end[mine] - self.begin[mine]
        owner = self.product[mine] if kind in MULTIPLYING else self.operator[mine]
        # A kernel without an operator goes by its name: a negative index into the names.
        kernels = self.trace.activities.name[self.inside[mine]] - len(self.trace.names)
        keys, places = np.unique(np.where(owner < 0, kernels, owner), return_inverse=True)
        times = np.bincount(places, exclusive, len(keys)).astype(np.int64)
        own_times = np.bincount(places, lengths, len(keys)).astype(np.int64)
        counts = np.bincount(places, minlength=len(keys))
        columns = (keys.tolist(), times.tolist(), own_times.tolist(), counts.tolist())
        yield from map(Owned, *columns)

    def _named(self, owned: Owned) -> tuple[str, str]:
        """Name of the owner, and the shapes of its call; empty if there is no call or no record."""
        names = self.trace.names
        if not owned.is_call:
            return operator_name(names[owned.key]), ""
        call = self.trace.host.calls.get(owned.key)
        name = operator_name(names[self.trace.host.name[owned.key]])
        if call is None:
            return name, ""
        if id(call) not in self._shapes:  # equal calls are one object
            self._shapes[id(call)] = shapes_text(call.shapes)
        return name, self._shapes[id(call)]

    def kernels(self) -> list[KernelRow]:
        """Rows of all kernels and copies, longest first: calls, summed seconds, share of all device
        time."""
        times = self.end - self.begin
        name = self.trace.activities.name[self.inside]
        if not times.sum():
            return []
        unique, places = np.unique(np.stack((name, self.kind)), axis=1, return_inverse=True)
        sums = np.bincount(places, weights=times)
        calls = np.bincount(places)
        total = float(times.sum())
        rows = list[KernelRow]()
        for index, (kernel, kind) in enumerate(unique.T.tolist()):
            row = KernelRow(
                kernel=self.trace.names[kernel],
                kind=KINDS[kind],
                calls=int(calls[index]),
                time_s=float(sums[index]) / 1e9,
                share_percent=100 * float(sums[index]) / total,
            )
            rows.append(row)
        return sorted(rows, key=lambda row: -row["time_s"])

    def collectives(self) -> dict[str, list[int]]:
        """Durations (ns) of communication kernels per kernel name, in order of begin."""
        chosen = self.inside[self.kind == COMMUNICATION]
        return shares.lengths_by_name(self.trace.names, self.trace.activities, chosen)

    def others(self) -> dict[str, int]:
        """Kernel time (ns) of each outermost operator that is not a product."""
        chosen = (self.kind == COMPUTE) & ~self.multiplied & (self.operator >= 0) & ~self.graph
        times = Counter[str]()
        names = self.trace.host.name[self.operator[chosen]].tolist()
        lengths = (self.end - self.begin)[chosen].tolist()
        for name, time in zip(names, lengths, strict=True):
            times[operator_name(self.trace.names[name])] += time
        return dict(times)
