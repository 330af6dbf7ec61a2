"""A window's time by what a device executed in it."""

from collections import Counter
from typing import Any

import numpy as np

from mfulab.device.samplers.reading import Reading, Readings, missing
from mfulab.tracing.attribution import COMPILED, Attribution
from mfulab.tracing.intervals import Intervals, clip, exclusive, gaps, length, overlapped, union
from mfulab.tracing.recording import COMMUNICATION, COMPUTE, COPY, KINDS, Recording, launch_of
from mfulab.tracing.shares import (
    ALL_UNITS,
    LAUNCH_UNITS,
    LEAST_ATTRIBUTED,
    OPERATOR_UNITS,
    SOURCE,
    SPENT,
    called,
    lengths_by_name,
    multiplying,
    waits,
)
from mfulab.tracing.tiles import multiplies
from mfulab.tracing.window import Window

LONG_NS = 1_000_000  # of a gap: no launch takes a millisecond, so the host did something else


class DeviceTime:
    """The window by what the device executed in it."""

    def __init__(
        self,
        recording: Recording,
        attribution: Attribution,
        window: Window,
        counted: set[int],
        device: int | None = None,
    ) -> None:
        self.recording, self.attribution, self.window = recording, attribution, window
        activities = recording.activities
        inside = (activities.end > window.begin) & (activities.begin < window.end)
        if device is not None:
            inside &= activities.device == device
        self.inside = np.flatnonzero(inside)
        self.kind = activities.kind[self.inside]
        self.begin, self.end = activities.begin[self.inside], activities.end[self.inside]
        self.product = attribution.product_of_activity()[self.inside]
        self.operator = attribution.operator_of_activity()[self.inside]
        self.graph = attribution.by_graph[self.inside]
        self.launched = launch_of(recording)[self.inside]
        compute = self.kind == COMPUTE
        # Kernels of operators without a formula, or of none, go by their names.
        named = recording.named(multiplies)[activities.name[self.inside]]
        self.multiplied = compute & ~self.graph & ((self.product >= 0) | named)
        known = np.isin(self.product, np.fromiter(counted, np.int64, len(counted))) & (self.product >= 0)
        again = known & attribution.recomputed[self.product] if len(attribution.recomputed) else known
        parts = exclusive(
            [
                self._where(self.multiplied & known & ~again),
                self._where(self.multiplied & again),
                self._where(self.multiplied),
                self._where(compute & ~self.graph),
                self._where(compute),
                self._where(self.kind == COMMUNICATION),
                self._where(self.kind == COPY),
                waits(recording),
            ],
            window.begin,
            window.end,
        )
        self.spent = dict(zip(SPENT, parts, strict=True))
        self.busy = union(clip(Intervals(self.begin, self.end), window.begin, window.end))

    def _where(self, chosen: Any) -> Intervals:
        return Intervals(self.begin[chosen], self.end[chosen])

    def readings(self) -> Readings:
        spent, window = self.spent, (self.window.begin, self.window.end)
        compute = sum(spent[name] for name in ("products", "recomputed", "uncounted", "others", "graph"))
        idle = gaps(self.busy, *window)
        lengths = idle.end - idle.begin
        times = {
            "kernel_busy_percent": compute + spent["communication"],
            "compute_busy_percent": compute,
            "copy_percent": spent["copies"],
            "communication_percent": spent["communication"],
            "idle_percent": spent["idle"] + spent["input_wait"],
            "graph_percent": spent["graph"],
            "communication_total_percent": length(union(clip(self._where(self.kind == COMMUNICATION), *window))),
            "stream_overlap_percent": overlapped(clip(Intervals(self.begin, self.end), *window)),
            "idle_input_percent": spent["input_wait"],
        }
        values = {name: 100 * time / self.window.length for name, time in times.items()} | {
            "launch_gaps_per_step": len(lengths) / self.window.steps,
            "launch_gap_s": float(np.median(lengths)) / 1e9 if len(lengths) else 0.0,
        }
        found = {name: self._reading(name, value) for name, value in values.items()}
        return {**found, **self._launches(idle), **self._occupancy(), **self._operators(compute)}

    def _reading(self, name: str, value: float | None, source: str = SOURCE) -> Reading:
        return Reading(value, ALL_UNITS[name], source, self.window.length / 1e9)

    def _operators(self, compute: int) -> Readings:
        spent, wall = self.spent, self.window.length
        if compute and spent["graph"] > (1 - LEAST_ATTRIBUTED) * compute:
            share = 100 * spent["graph"] / compute
            reason = f"{share:.0f} % of the kernels' time was launched by a graph, and belongs to no operator"
            return missing(OPERATOR_UNITS, SOURCE, reason)
        if not compute:
            return missing(OPERATOR_UNITS, SOURCE, "no compute kernel ran in this window")
        names = {self.recording.names[self.recording.host.name[one]] for one in np.unique(self.operator) if one >= 0}
        if not self.multiplied.any() and any(name.startswith(COMPILED) for name in names):
            return missing(OPERATOR_UNITS, SOURCE, "compiled code holds its matmuls itself")
        return {
            "matmul_percent": self._reading("matmul_percent", 100 * multiplying(spent) / wall),
            "other_operators_percent": self._reading("other_operators_percent", 100 * spent["others"] / wall),
        }

    def _launches(self, idle: Intervals) -> Readings:
        linked = self.launched >= 0
        if not linked.any():
            return missing(LAUNCH_UNITS, SOURCE, "the trace links no kernel to its launch")
        asked = self.recording.launches.begin[self.launched[linked]]
        began = self.begin[linked]
        delay = np.maximum(began - asked, 0)
        order = np.argsort(began, kind="stable")
        # A gap waits for the host where what ends it had not been launched when it began.
        after = np.searchsorted(began[order], idle.end, side="left")
        held = after < len(order)
        late = np.zeros(len(idle.end), bool)
        late[held] = asked[order[after[held]]] >= idle.begin[held]
        lengths = idle.end - idle.begin
        bound = int(lengths[late & (lengths < LONG_NS)].sum())
        wall = self.window.length
        values = 100 * bound / wall, float(np.median(delay)) / 1e9, float(delay.sum()) / wall
        return {name: self._reading(name, value) for name, value in zip(LAUNCH_UNITS, values, strict=True)}

    def _occupancy(self) -> Readings:
        name = "estimated_occupancy_percent"
        shares = self.recording.activities.occupancy[self.inside]
        known = np.isfinite(shares) & (self.kind == COMPUTE)
        weights = (self.end - self.begin)[known]
        if not known.any() or not weights.sum():
            return missing({name: "%"}, SOURCE, "the trace estimates none")
        return {name: self._reading(name, float(np.average(shares[known], weights=weights)), "launch arithmetic")}

    def kernels(self) -> list[dict[str, object]]:
        """A row for each kernel and copy, the longest first: calls, summed seconds, share of all device time."""
        times, name = self.end - self.begin, self.recording.activities.name[self.inside]
        if not times.sum():
            return []
        unique, places = np.unique(np.stack((name, self.kind)), axis=1, return_inverse=True)
        sums, calls = np.bincount(places, weights=times), np.bincount(places)
        return [
            {
                "kernel": self.recording.names[unique[0, one]],
                "kind": KINDS[unique[1, one]],
                "calls": int(calls[one]),
                "time_s": float(sums[one]) / 1e9,
                "share_percent": 100 * float(sums[one]) / float(times.sum()),
            }
            for one in np.argsort(-sums, kind="stable")
        ]

    def collectives(self) -> dict[str, list[int]]:
        """Communication kernels by name, in order of their begin: ns of each."""
        chosen = self.inside[self.kind == COMMUNICATION]
        return lengths_by_name(self.recording.names, self.recording.activities, chosen)

    def others(self) -> dict[str, int]:
        """Kernel time of each outermost operator that is no product."""
        chosen = (self.kind == COMPUTE) & ~self.multiplied & (self.operator >= 0) & ~self.graph
        found: Counter[str] = Counter()
        names = self.recording.host.name[self.operator[chosen]]
        for name, time in zip(names.tolist(), (self.end - self.begin)[chosen].tolist(), strict=True):
            found[called(self.recording.names[name])] += time
        return dict(found)
