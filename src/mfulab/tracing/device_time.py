"""Splits a window's time by what a device executed in it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from mfulab.tracing.trace import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    KINDS,
    Chosen,
    Columns,
    Indices,
    Times,
)

LONG_NS = 1_000_000  # in a longer gap the host did something else: no launch takes 1 ms
LONGEST_GAPS = 5
MOST_OF_GRAPHS = 0.1  # of compute time: with more of it in graphs, operators have no shares
# Why the device was idle, by the activity that ended the gap: it was launched late, after the host
# had waited for the device or without that; it was launched in time and waited in its queue; or
# the trace links it to no launch.
CAUSES = ("synchronisation", "starved", "queued", "unlinked")
PartKey = tuple[str, str, str]  # kind of time, operator, kernel or cause, and shapes


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
    flat = list[Sequence[object]]()
    for shape in shapes:
        if shape and isinstance(shape[0], list):
            flat += shape
        else:
            flat.append(shape)
    return "·".join("×".join(map(str, sides)) for sides in flat if sides)


@dataclass
class Executed(Columns):
    """Activities of a device that overlap a window, one row per activity."""

    index: Indices  # of `Trace.activities`
    kind: Indices  # index of `KINDS`
    name: Indices  # index of `Trace.names`
    product: Indices  # index of the product's host call; -1 if there is none
    operator: Indices  # index of the outermost operator's host call; -1 if there is none
    by_graph: Chosen  # launched as part of a graph
    launch: Indices  # index of `Trace.launches`; -1 if none is linked


@dataclass(frozen=True)
class Idle:
    """Gaps of a window in which a device executed nothing, as columns with one row per gap."""

    spans: Intervals
    ended_by: Indices  # row of `Executed`; -1 if the window ended the gap
    cause: Indices  # index of `CAUSES`

    @property
    def lengths(self) -> Times:
        """Length of each gap in ns."""
        return self.spans.end - self.spans.begin


def _executed(facts: OfWindow, device: int | None) -> Executed:
    """Activities that overlap the window, on one device or, if None, on all."""
    index = facts.executed(device)
    activities = facts.trace.activities
    attribution = facts.attribution
    return Executed(
        index=index,
        begin=activities.begin[index],
        end=activities.end[index],
        kind=activities.kind[index],
        name=activities.name[index],
        product=attribution.product_of_activity[index],
        operator=attribution.operator_of_activity[index],
        by_graph=attribution.by_graph[index],
        launch=facts.launched[index],
    )


def _multiplied(facts: OfWindow, executed: Executed) -> Chosen:
    """Mask of the kernels that multiply, outside of graphs."""
    # Kernels without an operator, or whose operator has no formula, are recognised by name.
    named = facts.multiplies[executed.name]
    named &= ~facts.attribution.by_optimizer[executed.index]
    outside_graphs = (executed.kind == COMPUTE) & ~executed.by_graph
    return outside_graphs & ((executed.product >= 0) | named)


def _classify(facts: OfWindow, executed: Executed, counted: set[int]) -> dict[str, Chosen]:
    """Masks of activities by kind of time. An activity counts as the first kind that has it.
    `counted` are the product calls whose FLOPs are known."""
    product = executed.product
    has_flops = np.isin(product, np.fromiter(counted, np.int64, len(counted)))
    has_flops &= product >= 0
    recomputed = has_flops & facts.recomputed[product]
    multiplied = _multiplied(facts, executed)
    compute = executed.kind == COMPUTE
    return {
        "products": multiplied & has_flops & ~recomputed,
        "recomputed": multiplied & recomputed,
        "uncounted": multiplied,
        "others": compute & ~executed.by_graph,
        "graph": compute,
        "communication": executed.kind == COMMUNICATION,
        "copies": executed.kind == COPY,
    }


def _find_gaps(facts: OfWindow, executed: Executed) -> Idle:
    """Finds the idle gaps, each with the activity that ended it and the cause."""
    span = facts.window.span
    busy = union(clip(executed.where(), *span))
    spans = gaps(busy, *span)
    # The last gap may end with the window: -1.
    order = np.append(np.argsort(executed.begin, kind="stable"), -1)
    ended_by = order[np.searchsorted(executed.begin[order[:-1]], spans.end, side="left")]
    launch = np.append(executed.launch, -1)[ended_by]
    return Idle(spans, ended_by, _causes(facts, spans.begin, launch))


def _causes(facts: OfWindow, begin: Times, launch: Indices) -> Indices:
    """Index in `CAUSES` of each gap's cause, by its begin and the launch of the activity that ended
    it."""
    launches = facts.trace.launches
    cause = np.full(len(launch), CAUSES.index("unlinked"))
    is_linked = launch >= 0
    if not is_linked.any():
        return cause
    cause[is_linked] = CAUSES.index("queued")
    is_late = is_linked & (launches.begin[launch] >= begin)
    cause[is_late] = CAUSES.index("starved")
    late = np.flatnonzero(is_late)
    threads = launches.thread[launch[late]]
    has_waited = facts.synchronising.at(begin[late], threads) >= 0
    cause[late[has_waited]] = CAUSES.index("synchronisation")
    return cause


def _idle_causes(idle: Idle, waits: Intervals) -> dict[str, int]:
    """Idle nanoseconds by cause, without `waits` for a DataLoader, which count as input_wait."""
    times = idle.lengths - within(union(waits), *idle.spans)
    causes = dict[str, int]()
    for index, name in enumerate(CAUSES):
        causes[name] = int(times[idle.cause == index].sum())
    return causes


class DeviceTime:
    """Splits a window's time by what the device executed in it."""

    def __init__(self, facts: OfWindow, counted: set[int], device: int | None) -> None:
        self._facts = facts
        self._shapes = dict[int, str]()
        self.trace = facts.trace
        self.window = facts.window
        self.waits = facts.waits
        self.executed = _executed(facts, device)
        self.layers = _classify(facts, self.executed, counted)
        self.idle = _find_gaps(facts, self.executed)
        self.idle_causes = _idle_causes(self.idle, self.waits)
        self.launched_by = self._find_owners()  # part of the device's time → its owners
        self.parts = self._sum_parts()  # part of the window → ns
        self.spent = dict.fromkeys(SPENT, 0)
        for (kind, *_), time in self.parts.items():
            self.spent[kind] += time

    @property
    def multiplied(self) -> Chosen:
        """Mask of the kernels that multiply, counted or not."""
        return self.layers["uncounted"]  # counted ones are in earlier layers too

    def longest_gaps(self) -> list[tuple[str, int, str]]:
        """Cause and length (ns) of the longest idle gaps, and the operator or kernel that ended
        each; an empty name if the window ended it."""
        lengths = self.idle.lengths
        owner = self.executed.operator
        named = np.where(owner < 0, self.executed.name, self._facts.host_names[owner])
        longest = np.argsort(-lengths, kind="stable")[:LONGEST_GAPS]
        found = list[tuple[str, int, str]]()
        for gap in longest.tolist():
            ended_by = self.idle.ended_by[gap]
            name = ""
            if ended_by >= 0:
                name = self.trace.names[named[ended_by]]
            found.append((CAUSES[self.idle.cause[gap]], int(lengths[gap]), name))
        return found

    def readings(self) -> Readings:
        """Shares of the window, gaps and launches, by column; a value that is None has its
        reason."""
        spent = self.spent
        wall = self.window.length
        compute = sum(spent[name] for name in SPENT[: SPENT.index("communication")])
        sent = self.executed.where(self.layers["communication"])
        communication = union(clip(sent, *self.window.span))
        lengths = self.idle.lengths
        times = {
            "kernel_busy_percent": compute + spent["communication"],
            "compute_busy_percent": compute,
            "copy_percent": spent["copies"],
            "communication_percent": spent["communication"],
            "idle_percent": spent["idle"] + spent["input_wait"],
            "communication_total_percent": length(communication),
        }
        values = {"launch_gaps_per_step": len(lengths) / self.window.steps, "launch_gap_s": 0.0}
        if len(lengths):
            values["launch_gap_s"] = float(np.median(lengths)) / 1e9
        absent = Readings()
        if (self.executed.launch >= 0).any():
            # The host caused a gap if the activity that ended it was launched after the gap began.
            is_late = self.idle.cause <= CAUSES.index("starved")
            waited = lengths[is_late & (lengths < LONG_NS)]
            times["launch_bound_percent"] = int(waited.sum())
        else:
            why = Said("no_launch_linked")
            absent |= shares.readings({"launch_bound_percent": None}, reason=why)
        if reason := self._without_operators(compute):
            absent |= shares.readings(dict.fromkeys(shares.OF_OPERATORS), reason=reason)
        else:
            times["matmul_percent"] = shares.multiplying(spent)
            times["other_operators_percent"] = spent["others"]
        for name, time in times.items():
            values[name] = 100 * time / wall
        return absent | shares.readings(values, window_s=wall / 1e9)

    def _without_operators(self, compute: int) -> Said | None:
        """Reason why operators have no shares of the window; None if they have."""
        if not compute:
            return Said("no_compute_kernel")
        if self.spent["graph"] > MOST_OF_GRAPHS * compute:
            share = 100 * self.spent["graph"] / compute
            return Said("mostly_by_graph", share=share)
        operator = self.executed.operator
        operators = np.unique(operator[operator >= 0])
        compiled = self.trace.named(lambda name: name.startswith(COMPILED))
        if not self.multiplied.any() and compiled[self.trace.host.name[operators]].any():
            return Said("inside_compiled")
        return None

    def _find_owners(self) -> dict[PartKey, list[Owned]]:
        """Groups activities by kind of time, operator and shapes. Where activities overlap, the
        first kind in `SPENT` counts."""
        owners = dict[PartKey, list[Owned]]()
        covered = NONE
        left = np.ones(len(self.executed.begin), bool)
        for kind, chosen in self.layers.items():
            mine = np.flatnonzero(chosen & left)
            mine = mine[np.argsort(self.executed.begin[mine], kind="stable")]
            left[mine] = False
            for owned in self._owned(kind, mine, covered):
                part = kind, *self._named(owned)
                owners.setdefault(part, []).append(owned)
            own = clip(self.executed.where(chosen), *self.window.span)
            covered = union(join([covered, own]))
        return owners

    def _sum_parts(self) -> dict[PartKey, int]:
        """Nanoseconds per kind of time, operator and shapes, and of idle time per cause."""
        parts = dict[PartKey, int]()
        for part, several in self.launched_by.items():
            parts[part] = sum(owned.time_ns for owned in several)
        for cause, time in self.idle_causes.items():
            parts["idle", cause, ""] = time
        idle = sum(self.idle_causes.values())
        parts["input_wait", "", ""] = length(self.idle.spans) - idle
        return {part: time for part, time in parts.items() if time}

    def _owned(self, kind: str, mine: Indices, covered: Intervals) -> Iterator[Owned]:
        """Groups activities by their owner; their exclusive time leaves out what `covered`
        holds."""
        executed = self.executed
        begin, end = in_turn(*executed.where(mine), *self.window.span)
        exclusive = end - begin - within(covered, begin, end)
        lengths = executed.lengths[mine]
        owner = executed.product[mine] if kind in MULTIPLYING else executed.operator[mine]
        # A kernel without an operator goes by its name: a negative index into the names.
        kernels = executed.name[mine] - len(self.trace.names)
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
        times = self.executed.lengths
        if not times.sum():
            return []
        pairs = np.stack((self.executed.name, self.executed.kind))
        unique, places = np.unique(pairs, axis=1, return_inverse=True)
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
        chosen = self.executed.index[self.layers["communication"]]
        return shares.lengths_by_name(self.trace.names, self.trace.activities, chosen)

    def others(self) -> dict[str, int]:
        """Kernel time (ns) of each outermost operator that is not a product."""
        operator = self.executed.operator
        chosen = self.layers["others"] & ~self.multiplied & (operator >= 0)
        times = Counter[str]()
        names = self.trace.host.name[operator[chosen]].tolist()
        lengths = self.executed.lengths[chosen].tolist()
        for name, time in zip(names, lengths, strict=True):
            times[operator_name(self.trace.names[name])] += time
        return dict(times)
