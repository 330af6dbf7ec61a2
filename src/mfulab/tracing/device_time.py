"""A window's time by what a device executed in it."""

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
from mfulab.tracing.shares import MULTIPLYING, SPENT, KernelRow, called
from mfulab.tracing.trace import COMMUNICATION, COMPUTE, COPY, KINDS, Indices

LONG_NS = 1_000_000  # of a gap: no launch takes a millisecond, so the host did something else
LONGEST_GAPS = 5
MOST_OF_GRAPHS = 0.1  # of the compute kernels' time: with more of it operators have no shares
# Why the device was idle, by what ended it: its launch was not made yet, after the host had waited
# for the device or without; it was launched and waited itself; or the trace does not link it.
CAUSES = ("synchronisation", "starved", "queued", "unlinked")
Part = tuple[str, str, str]  # kind of time, operator, kernel or cause, and shapes


class Owned(NamedTuple):
    """Time of activities that one call owns, or that share a kernel's name without one."""

    key: int  # index of the host's call; negative, a kernel's name from the end of the names
    time_ns: int  # exclusive
    kernel_ns: int  # overlapped or not
    kernels: int

    @property
    def is_call(self) -> bool:
        """Says whether a host's call owns them."""
        return self.key >= 0


def shapes_text(shapes: Sequence[Any]) -> str:
    """Shapes of a call as 64×32·32×8, those of a list of tensors one by one."""
    flat = list[Any]()
    for shape in shapes:
        flat += shape if shape and isinstance(shape[0], list) else [shape]
    return "·".join("×".join(map(str, dims)) for dims in flat if dims)


class DeviceTime:
    """The window by what the device executed in it."""

    def __init__(self, held: OfWindow, counted: set[int], device: int | None) -> None:
        self._held = held
        self.trace = trace = held.trace
        self.window = window = held.window
        self.waits = held.waits
        attribution = held.attribution
        activities = trace.activities
        self.inside = held.executed(device)
        self.kind = activities.kind[self.inside]
        self.begin = activities.begin[self.inside]
        self.end = activities.end[self.inside]
        self.product = attribution.product_of_activity[self.inside]
        self.operator = attribution.operator_of_activity[self.inside]
        self.graph = attribution.by_graph[self.inside]
        self.launched = held.launched[self.inside]
        compute = self.kind == COMPUTE
        # Kernels of operators without a formula, or of none, go by their names.
        named = held.multiplies[activities.name[self.inside]]
        named &= ~attribution.by_optimizer[self.inside]
        self.multiplied = compute & ~self.graph & ((self.product >= 0) | named)
        has_flops = np.isin(self.product, np.fromiter(counted, np.int64, len(counted)))
        has_flops &= self.product >= 0
        again = has_flops & held.recomputed[self.product]
        self.layers = {
            "products": self.multiplied & has_flops & ~again,
            "recomputed": self.multiplied & again,
            "uncounted": self.multiplied,
            "others": compute & ~self.graph,
            "graph": compute,
            "communication": self.kind == COMMUNICATION,
            "copies": self.kind == COPY,
        }
        self.idle = gaps(union(clip(Intervals(self.begin, self.end), *window.span)), *window.span)
        self.ended, self.cause = self._ends()
        waiting = union(held.waits)  # a DataLoader's is no cause of these
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
        """Spans of some of the activities inside."""
        return Intervals(self.begin[chosen], self.end[chosen])

    def _ends(self) -> tuple[Any, Any]:
        """Index into `inside` of what ended each idle gap, or -1, and the index of the gap's
        cause."""
        order = np.append(
            np.argsort(self.begin, kind="stable"), -1
        )  # the last gap ends with the window
        ended = order[np.searchsorted(self.begin[order[:-1]], self.idle.end, side="left")]
        launches = self.trace.launches
        launch = np.append(self.launched, -1)[ended]
        cause = np.full(len(ended), CAUSES.index("unlinked"))
        if not (launch >= 0).any():
            return ended, cause
        cause[launch >= 0] = CAUSES.index("queued")
        late = (launch >= 0) & (launches.begin[launch] >= self.idle.begin)
        cause[late] = CAUSES.index("starved")
        asked = np.flatnonzero(late)
        threads = launches.thread[launch[asked]]
        waiting = self._held.synchronising.at(self.idle.begin[asked], threads) >= 0
        cause[asked[waiting]] = CAUSES.index("synchronisation")
        return ended, cause

    def longest_gaps(self) -> list[tuple[str, int, str]]:
        """Cause and ns of the longest idle gaps, and the operator or kernel that ended each."""
        lengths = self.idle.end - self.idle.begin
        owner = self.operator
        kernels = self.trace.activities.name[self.inside]
        named = np.where(owner < 0, kernels, self._held.host_names[owner])
        found = list[tuple[str, int, str]]()
        for gap in np.argsort(-lengths, kind="stable")[:LONGEST_GAPS].tolist():
            last = self.ended[gap]
            name = ""
            if last >= 0:
                name = self.trace.names[named[last]]
            found.append((CAUSES[self.cause[gap]], int(lengths[gap]), name))
        return found

    def readings(self) -> Readings:
        """Shares of the window, gaps and launches, by column; the reason where one is not told."""
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
            # A gap waits for the host where what ends it had not been launched when it began.
            late = self.cause <= CAUSES.index("starved")
            times["launch_bound_percent"] = int(lengths[late & (lengths < LONG_NS)].sum())
        else:
            why = Said("no_launch_linked")
            absent |= shares.readings({"launch_bound_percent": None}, reason=why)
        if without := self._without_operators(compute):
            absent |= shares.readings(dict.fromkeys(shares.OF_OPERATORS), reason=without)
        else:
            times |= {
                "matmul_percent": shares.multiplying(spent),
                "other_operators_percent": spent["others"],
            }
        for name, time in times.items():
            values[name] = 100 * time / wall
        return absent | shares.readings(values, window_s=wall / 1e9)

    def _without_operators(self, compute: int) -> Said | None:
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
        """Nanoseconds by kind, operator and shapes, idle by cause; of overlaps the first of `SPENT`
        counts."""
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
        """Times of some activities by what owns them, without what others cover."""
        begin, end = in_turn(self.begin[mine], self.end[mine], *self.window.span)
        exclusive = end - begin - within(covered, begin, end)
        lengths = self.end[mine] - self.begin[mine]
        owner = self.product[mine] if kind in MULTIPLYING else self.operator[mine]
        # Without an operator a kernel's name tells it: its place in the names, from their end.
        kernels = self.trace.activities.name[self.inside[mine]] - len(self.trace.names)
        keys, places = np.unique(np.where(owner < 0, kernels, owner), return_inverse=True)
        times = np.bincount(places, exclusive, len(keys)).astype(np.int64)
        own_times = np.bincount(places, lengths, len(keys)).astype(np.int64)
        counts = np.bincount(places, minlength=len(keys))
        columns = (keys.tolist(), times.tolist(), own_times.tolist(), counts.tolist())
        yield from map(Owned, *columns)

    def _named(self, owned: Owned) -> tuple[str, str]:
        """Name of what owns activities, and the shapes of its call; "" without one."""
        names = self.trace.names
        if not owned.is_call:
            return called(names[owned.key]), ""
        call = self.trace.host.calls.get(owned.key)
        name = called(names[self.trace.host.name[owned.key]])
        if call is None:
            return name, ""
        if id(call) not in self._shapes:  # which equal calls share
            self._shapes[id(call)] = shapes_text(call.shapes)
        return name, self._shapes[id(call)]

    def kernels(self) -> list[KernelRow]:
        """A row for each kernel and copy, the longest first: calls, summed seconds, share of all
        device time."""
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
        """Communication kernels by name, in order of their begin: ns of each."""
        chosen = self.inside[self.kind == COMMUNICATION]
        return shares.lengths_by_name(self.trace.names, self.trace.activities, chosen)

    def others(self) -> dict[str, int]:
        """Kernel time of each outermost operator that is no product."""
        chosen = (self.kind == COMPUTE) & ~self.multiplied & (self.operator >= 0) & ~self.graph
        times = Counter[str]()
        names = self.trace.host.name[self.operator[chosen]].tolist()
        lengths = (self.end - self.begin)[chosen].tolist()
        for name, time in zip(names, lengths, strict=True):
            times[called(self.trace.names[name])] += time
        return dict(times)
