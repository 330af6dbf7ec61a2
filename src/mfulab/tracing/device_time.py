"""A window's time by what a device executed in it."""

import re
from collections import Counter
from typing import Any

import numpy as np

from mfulab.device.samplers.reading import Readings
from mfulab.tracing import shares
from mfulab.tracing.attribution import COMPILED, Attribution, open_at
from mfulab.tracing.intervals import NONE, Intervals, clip, gaps, in_turn, join, length, union, within
from mfulab.tracing.shares import MULTIPLYING, SPENT, called
from mfulab.tracing.tiles import multiplies
from mfulab.tracing.trace import COMMUNICATION, COMPUTE, COPY, KINDS, Trace, launch_of
from mfulab.tracing.window import Window

LONG_NS = 1_000_000  # of a gap: no launch takes a millisecond, so the host did something else
LONGEST_GAPS = 5
MOST_OF_GRAPHS = 0.1  # of the compute kernels' time: with more of it operators have no shares
# Why the device was idle, by what ended it: its launch was not made yet, after the host had waited for the device or
# without; it was launched and waited itself; or the trace does not link it.
CAUSES = ("synchronisation", "starved", "queued", "unlinked")
Part = tuple[str, str, str]  # kind of time, operator, kernel or cause, and shapes
_SYNCHRONISES = re.compile(r"Synchronize|Memcpy(?!.*Async)")


class DeviceTime:
    """The window by what the device executed in it."""

    def __init__(
        self, trace: Trace, attribution: Attribution, window: Window, counted: set[int], device: int | None
    ) -> None:
        self.trace, self.window, activities = trace, window, trace.activities
        self.inside = window.executed(activities, device)
        self.kind = activities.kind[self.inside]
        self.begin, self.end = activities.begin[self.inside], activities.end[self.inside]
        self.product = attribution.product_of_activity[self.inside]
        self.operator = attribution.operator_of_activity[self.inside]
        self.graph = attribution.by_graph[self.inside]
        self.launched = launch_of(trace)[self.inside]
        compute = self.kind == COMPUTE
        # Kernels of operators without a formula, or of none, go by their names.
        named = trace.named(multiplies)[activities.name[self.inside]] & ~attribution.by_optimizer[self.inside]
        self.multiplied = compute & ~self.graph & ((self.product >= 0) | named)
        has_flops = np.isin(self.product, np.fromiter(counted, np.int64, len(counted))) & (self.product >= 0)
        again = has_flops & np.append(attribution.recomputed, False)[self.product]
        self.layers = [
            *(self.multiplied & has_flops & ~again, self.multiplied & again, self.multiplied, compute & ~self.graph),
            *(compute, self.kind == COMMUNICATION, self.kind == COPY),
        ]
        self.idle = gaps(union(clip(Intervals(self.begin, self.end), *window.span)), *window.span)
        self.ended, self.cause = self._ends()
        waiting = union(shares.waits(trace))  # a DataLoader's is no cause of these
        idle = self.idle.end - self.idle.begin - within(waiting, *self.idle)
        self.idle_causes = {name: int(idle[self.cause == place].sum()) for place, name in enumerate(CAUSES)}
        self.launched_by: dict[Part, list[tuple[int, int, int]]] = {}  # calls, ns of their kernels and how many
        self.parts = self._parts()
        self.spent = dict.fromkeys(SPENT, 0)
        for (kind, *_), time in self.parts.items():
            self.spent[kind] += time

    def where(self, chosen: Any) -> Intervals:
        """Spans of some of the activities inside."""
        return Intervals(self.begin[chosen], self.end[chosen])

    def _ends(self) -> tuple[Any, Any]:
        """Index into `inside` of what ended each idle gap, or -1, and the index of the gap's cause."""
        order = np.append(np.argsort(self.begin, kind="stable"), -1)  # the last gap ends with the window
        ended = order[np.searchsorted(self.begin[order[:-1]], self.idle.end, side="left")]
        launches, launch = self.trace.launches, np.append(self.launched, -1)[ended]
        cause = np.full(len(ended), CAUSES.index("unlinked"))
        if not (launch >= 0).any():
            return ended, cause
        cause[launch >= 0] = CAUSES.index("queued")
        late = (launch >= 0) & (launches.begin[launch] >= self.idle.begin)
        cause[late] = CAUSES.index("starved")
        waited = np.flatnonzero(self.trace.named(_SYNCHRONISES.search)[launches.name])
        order, none = waited[np.argsort(launches.begin[waited], kind="stable")], np.full(len(launches.begin), -1)
        asked = np.flatnonzero(late)
        at = self.idle.begin[asked], launches.thread[launch[asked]]
        held = open_at(launches.begin, launches.end, launches.thread, none, order, *at) >= 0
        cause[asked[held]] = CAUSES.index("synchronisation")
        return ended, cause

    def longest_gaps(self) -> list[tuple[str, int, str]]:
        """Cause and ns of the longest idle gaps, and the operator or kernel that ended each."""
        lengths = self.idle.end - self.idle.begin
        owner, kernels = self.operator, self.trace.activities.name[self.inside]
        named = np.where(owner < 0, kernels, np.append(self.trace.host.name, -1)[owner])
        longest = np.argsort(-lengths, kind="stable")[:LONGEST_GAPS]
        names = [self.trace.names[named[last]] if last >= 0 else "" for last in self.ended[longest].tolist()]
        causes = [CAUSES[cause] for cause in self.cause[longest].tolist()]
        return list(zip(causes, lengths[longest].tolist(), names, strict=True))

    def readings(self) -> Readings:
        """Shares of the window, gaps and launches, by column; the reason where one is not told."""
        spent, wall = self.spent, self.window.length
        compute = sum(spent[name] for name in SPENT[: SPENT.index("communication")])
        communication = union(clip(self.where(self.kind == COMMUNICATION), *self.window.span))
        lengths = self.idle.end - self.idle.begin
        times = {
            "kernel_busy_percent": compute + spent["communication"],
            "compute_busy_percent": compute,
            "copy_percent": spent["copies"],
            "communication_percent": spent["communication"],
            "idle_percent": spent["idle"] + spent["input_wait"],
            "graph_percent": spent["graph"],
            "communication_total_percent": length(communication),
            "idle_input_percent": spent["input_wait"],
        }
        values = {
            "launch_gaps_per_step": len(lengths) / self.window.steps,
            "launch_gap_s": float(np.median(lengths)) / 1e9 if len(lengths) else 0.0,
        }
        linked, absent = self.launched >= 0, Readings()
        if linked.any():
            delay = np.maximum(self.begin[linked] - self.trace.launches.begin[self.launched[linked]], 0)
            # A gap waits for the host where what ends it had not been launched when it began.
            late = self.cause <= CAUSES.index("starved")
            times["launch_bound_percent"] = int(lengths[late & (lengths < LONG_NS)].sum())
            values |= {"launch_latency_s": float(np.median(delay)) / 1e9, "queue_depth": float(delay.sum()) / wall}
        else:
            why = "the trace links no kernel to its launch"
            absent |= shares.readings(dict.fromkeys(shares.OF_LAUNCHES), reason=why)
        if without := self._without_operators(compute):
            absent |= shares.readings(dict.fromkeys(shares.OF_OPERATORS), reason=without)
        else:
            times |= {"matmul_percent": shares.multiplying(spent), "other_operators_percent": spent["others"]}
        values |= {name: 100 * time / wall for name, time in times.items()}
        return absent | shares.readings(values, window_s=wall / 1e9)

    def _without_operators(self, compute: int) -> str:
        if not compute:
            return "no compute kernel ran in this window"
        if self.spent["graph"] > MOST_OF_GRAPHS * compute:
            share = 100 * self.spent["graph"] / compute
            return f"{share:.0f} % of the kernels' time was launched by a graph, and belongs to no operator"
        names = {self.trace.names[self.trace.host.name[call]] for call in np.unique(self.operator) if call >= 0}
        is_hidden = not self.multiplied.any() and any(name.startswith(COMPILED) for name in names)
        return "compiled code holds its matmuls itself" if is_hidden else ""

    def _parts(self) -> dict[Part, int]:
        """Nanoseconds by kind, operator and shapes, idle by cause; of overlaps the first of `SPENT` counts."""
        names, host, parts = self.trace.names, self.trace.host, Counter[Part]()
        covered, left = NONE, np.ones(len(self.begin), bool)
        for kind, chosen in zip(SPENT, self.layers, strict=False):
            mine = np.flatnonzero(chosen & left)
            mine = mine[np.argsort(self.begin[mine], kind="stable")]
            left[mine] = False
            begin, end = in_turn(self.begin[mine], self.end[mine], *self.window.span)
            times = end - begin - within(covered, begin, end)
            owner = self.product[mine] if kind in MULTIPLYING else self.operator[mine]
            # Without an operator a kernel's name tells it: its place in the names, from their end.
            keys = np.where(owner < 0, self.trace.activities.name[self.inside[mine]] - len(names), owner)
            unique, places = np.unique(keys, return_inverse=True)
            summed = (times, self.end[mine] - self.begin[mine], np.ones(len(mine)))  # exclusive, own, kernels
            sums = np.array([np.bincount(places, what, len(unique)) for what in summed]).astype(np.int64)
            for key, (time, own, kernels) in zip(unique.tolist(), sums.T.tolist(), strict=True):
                recorded = host.calls.get(key)
                held = recorded.shapes if recorded else ()
                flat = [dims for shape in held for dims in (shape if shape and isinstance(shape[0], list) else [shape])]
                shapes = "·".join("×".join(map(str, dims)) for dims in flat if dims)
                part = kind, called(names[key if key < 0 else host.name[key]]), shapes
                parts[part] += time
                self.launched_by.setdefault(part, []).append((max(key, -1), own, kernels))
            covered = union(join([covered, clip(self.where(chosen), *self.window.span)]))
        parts |= Counter({("idle", cause, ""): time for cause, time in self.idle_causes.items()})
        parts["input_wait", "", ""] = length(self.idle) - sum(self.idle_causes.values())
        return {part: time for part, time in parts.items() if time}

    def kernels(self) -> list[dict[str, Any]]:
        """A row for each kernel and copy, the longest first: calls, summed seconds, share of all device time."""
        times, name = self.end - self.begin, self.trace.activities.name[self.inside]
        if not times.sum():
            return []
        unique, places = np.unique(np.stack((name, self.kind)), axis=1, return_inverse=True)
        sums, calls = np.bincount(places, weights=times), np.bincount(places)
        rows = []
        for (kernel, kind), count, time in zip(unique.T.tolist(), calls.tolist(), sums.tolist(), strict=True):
            about = {"kernel": self.trace.names[kernel], "kind": KINDS[kind], "calls": count, "time_s": time / 1e9}
            rows.append(about | {"share_percent": 100 * time / float(times.sum())})
        return sorted(rows, key=lambda row: -row["time_s"])

    def collectives(self) -> dict[str, list[int]]:
        """Communication kernels by name, in order of their begin: ns of each."""
        chosen = self.inside[self.kind == COMMUNICATION]
        return shares.lengths_by_name(self.trace.names, self.trace.activities, chosen)

    def others(self) -> dict[str, int]:
        """Kernel time of each outermost operator that is no product."""
        chosen = (self.kind == COMPUTE) & ~self.multiplied & (self.operator >= 0) & ~self.graph
        times, names = Counter[str](), self.trace.host.name[self.operator[chosen]]
        for name, time in zip(names.tolist(), (self.end - self.begin)[chosen].tolist(), strict=True):
            times[called(self.trace.names[name])] += time
        return dict(times)
