"""Analysis of one window of a trace: its time by kind and operator, and its FLOPs."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mfulab.flops.operators import Cost
from mfulab.flops.recorded import Recorded, recorded_format
from mfulab.samplers.reading import Reading, Readings, missing
from mfulab.tracing.attribution import COMPILED, FUSED, Attribution, attribute
from mfulab.tracing.intervals import Intervals, clip, exclusive, gaps, length, overlapped, union
from mfulab.tracing.recording import COMMUNICATION, COMPUTE, COPY, KINDS, Recording, launch_of
from mfulab.tracing.tiles import multiplies, padding, rounds_to_tf32, tile_of
from mfulab.tracing.window import Window

SOURCE = "profiler trace"
UNITS = {
    "kernel_busy_percent": "%",
    "compute_busy_percent": "%",
    "copy_percent": "%",
    "communication_percent": "%",
    "idle_percent": "%",
    "launch_gaps_per_step": "",
    "launch_gap_s": "s",
}
OPERATOR_UNITS = {"matmul_percent": "%", "other_operators_percent": "%"}
TRACE_UNITS = {
    "graph_percent": "%",
    "communication_total_percent": "%",
    "stream_overlap_percent": "%",
    "launch_bound_percent": "%",
    "launch_latency_s": "s",
    "queue_depth": "",
    "estimated_occupancy_percent": "%",
    "idle_input_percent": "%",
}
ALL_UNITS = {**UNITS, **OPERATOR_UNITS, **TRACE_UNITS}
LEAST_ATTRIBUTED = 0.9  # of the compute kernels' time, for shares of operators and for FLOPs
LOADER = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__")
GLOO, ASKS = "gloo:", "c10d::"  # a collective in a thread of gloo's own, and the call that queues it
NO_KERNELS = "a CPU runs operators, not kernels"


@dataclass
class Product:
    """Calls of one product with one shape and format: `time_ns` of its kernels (on a CPU, of its calls)."""

    name: str
    shapes: str
    format: str | None
    recomputed: bool
    calls: int = 0
    time_ns: int = 0
    flops: int = 0
    causal_flops: int = 0
    executed_flops: int = 0
    matmul: tuple[int, int, int, int] | None = None
    tile: tuple[int, int] | None = None
    padding: float = 0.0
    kernel: str = ""
    reason: str = ""
    recorded_flops: int = 0


@dataclass
class Analysis:
    """All that is told of one window.

    Attributes:
        window: the time that it is told of.
        readings: shares, gaps and latencies, by column.
        spent: nanoseconds of each kind of time, exclusive: they sum to the window.
        products: by operator, shapes and format, longest first.
        kernels: a row for each kernel and copy, longest first.
        others: outermost other operators → ns of their kernels.
        uncounted: products without FLOPs → ns and the reason.
        on_gpu: whether a GPU did it.
        backward: whether a backward pass was recorded in it.
        collectives: communication kernels by name → ns of each, in order.
    """

    window: Window
    readings: Readings
    spent: dict[str, int]
    products: list[Product]
    kernels: list[dict[str, object]]
    others: dict[str, int]
    uncounted: dict[str, tuple[int, str]]
    on_gpu: bool
    backward: bool = False
    collectives: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def counted(self) -> list[Product]:
        """The products whose FLOPs are known."""
        return [product for product in self.products if not product.reason]

    def flops(self, what: str = "flops", recomputed: bool = False) -> dict[str, int]:
        """FLOPs of the window by format: `flops`, `causal_flops` or `executed_flops`."""
        found: Counter[str] = Counter()
        for product in self.counted:
            if recomputed or not product.recomputed:
                found[product.format or "unknown"] += getattr(product, what)
        return dict(found)

    def top_kernels(self) -> str | None:
        """The five longest kernels as JSON: name → share of device time in percent."""
        return top_kernels(self.kernels)

    def top_other_operators(self) -> str | None:
        """The five longest other operators as JSON: name → share of the window in percent."""
        longest = {
            name: round(100 * time / self.window.length, 1)
            for name, time in sorted(self.others.items(), key=lambda item: -item[1])[:5]
            if time
        }
        return json.dumps(longest) if longest and self.readings["matmul_percent"].value is not None else None


def analyse(recording: Recording, window: Window, attribution: Attribution | None = None) -> Analysis:
    """Reads one window of a trace; of several devices in one trace, the one with most activities."""
    attribution = attribution or attribute(recording)
    on_gpu = len(recording.activities) > 0
    products, uncounted, counted = _products(recording, attribution, window, on_gpu)
    told = _DeviceTime if on_gpu else _HostTime
    device = told(recording, attribution, window, counted)
    return Analysis(
        window=window, readings=device.readings(), spent=device.spent, products=products, kernels=device.kernels(),
        others=device.others(), uncounted=uncounted, on_gpu=on_gpu, notes=device.notes,
        collectives=device.collectives(),
        backward=bool(attribution.backward[window.called(recording.host.begin)].any()),
    )  # fmt: skip


class _DeviceTime:
    """The window by what the device executed in it."""

    def __init__(self, recording: Recording, attribution: Attribution, window: Window, counted: set[int]) -> None:
        self.recording, self.attribution, self.window = recording, attribution, window
        activities = recording.activities
        inside = (activities.end > window.begin) & (activities.begin < window.end)
        self.notes: list[str] = []
        devices, counts = np.unique(activities.device[inside], return_counts=True)
        if len(devices) > 1:
            inside &= activities.device == devices[counts.argmax()]
            self.notes.append(f"{len(devices)} devices in one trace: device {devices[counts.argmax()]} is read")
        self.inside = np.flatnonzero(inside)
        self.kind = activities.kind[self.inside]
        self.begin, self.end = activities.begin[self.inside], activities.end[self.inside]
        self.product = attribution.product_of_activity()[self.inside]
        self.operator = attribution.operator_of_activity()[self.inside]
        self.graph = attribution.by_graph[self.inside]
        self.launched = launch_of(recording)[self.inside]
        compute = self.kind == COMPUTE
        # Kernels of no operator, left over from earlier steps or launched by hand, go by their names.
        named = np.array([multiplies(name) for name in recording.names], bool)[activities.name[self.inside]]
        alone = (self.product < 0) & (self.operator < 0) & ~self.graph
        self.multiplied = compute & ~self.graph & ((self.product >= 0) | (alone & named))
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
                _waits(recording),
            ],
            window.begin,
            window.end,
        )
        self.spent = dict(zip(SPENT, parts, strict=True))
        self.busy = union(clip(Intervals(self.begin, self.end), window.begin, window.end))

    def _where(self, chosen: Any) -> Intervals:
        return Intervals(self.begin[chosen], self.end[chosen])

    def readings(self) -> Readings:
        spent, wall = self.spent, self.window.length
        compute = sum(spent[name] for name in ("products", "recomputed", "uncounted", "others", "graph"))
        busy = compute + spent["communication"]
        idle = gaps(self.busy, self.window.begin, self.window.end)
        lengths = idle.end - idle.begin
        values: dict[str, float | None] = {
            "kernel_busy_percent": 100 * busy / wall,
            "compute_busy_percent": 100 * compute / wall,
            "copy_percent": 100 * spent["copies"] / wall,
            "communication_percent": 100 * spent["communication"] / wall,
            "idle_percent": 100 * (spent["idle"] + spent["input_wait"]) / wall,
            "launch_gaps_per_step": len(lengths) / self.window.steps,
            "launch_gap_s": float(np.median(lengths)) / 1e9 if len(lengths) else 0.0,
            "graph_percent": 100 * spent["graph"] / wall,
            "communication_total_percent": 100
            * length(union(clip(self._where(self.kind == COMMUNICATION), self.window.begin, self.window.end)))
            / wall,
            "stream_overlap_percent": 100
            * overlapped(clip(Intervals(self.begin, self.end), self.window.begin, self.window.end))
            / wall,
            "idle_input_percent": 100 * spent["input_wait"] / wall,
        }
        found = {name: self._reading(name, value) for name, value in values.items()}
        return {**found, **self._launches(idle), **self._occupancy(), **self._operators(compute)}

    def _reading(self, name: str, value: float | None, reason: str = "", source: str = SOURCE) -> Reading:
        return Reading(value, ALL_UNITS[name], source, self.window.length / 1e9, reason)

    def _operators(self, compute: int) -> Readings:
        spent, wall = self.spent, self.window.length
        if compute and spent["graph"] > (1 - LEAST_ATTRIBUTED) * compute:
            share = 100 * spent["graph"] / compute
            reason = f"{share:.0f} % of the kernels' time was launched by a graph, and belongs to no operator"
            return missing(OPERATOR_UNITS, SOURCE, reason)
        if not compute:
            return missing(OPERATOR_UNITS, SOURCE, "no compute kernel ran in this window")
        if not (self.multiplied.any()) and self.operator.size and self._fused():
            return missing(OPERATOR_UNITS, SOURCE, "compiled code holds its products itself")
        return {
            "matmul_percent": self._reading("matmul_percent", 100 * _multiplying(spent) / wall),
            "other_operators_percent": self._reading("other_operators_percent", 100 * spent["others"] / wall),
        }

    def _fused(self) -> bool:
        names = {self.recording.names[self.recording.host.name[one]] for one in np.unique(self.operator) if one >= 0}
        return any(name.startswith(COMPILED) for name in names)

    def _launches(self, idle: Intervals) -> Readings:
        names = ("launch_bound_percent", "launch_latency_s", "queue_depth")
        linked = self.launched >= 0
        if not linked.any():
            units = {name: ALL_UNITS[name] for name in names}
            return missing(units, SOURCE, "the trace links no kernel to its launch")
        asked = self.recording.launches.begin[self.launched[linked]]
        began = self.begin[linked]
        delay = np.maximum(began - asked, 0)
        order = np.argsort(began, kind="stable")
        # A gap waits for the host where what ends it had not been launched when it began.
        after = np.searchsorted(began[order], idle.end, side="left")
        held = after < len(order)
        late = np.zeros(len(idle.end), bool)
        late[held] = asked[order[after[held]]] >= idle.begin[held]
        bound = int((idle.end - idle.begin)[late].sum())
        values = (
            100 * bound / self.window.length,
            float(np.median(delay)) / 1e9,
            float(delay.sum()) / self.window.length,
        )
        return {name: self._reading(name, value) for name, value in zip(names, values, strict=True)}

    def _occupancy(self) -> Readings:
        name = "estimated_occupancy_percent"
        shares = self.recording.activities.occupancy[self.inside]
        known = np.isfinite(shares) & (self.kind == COMPUTE)
        weights = (self.end - self.begin)[known]
        if not known.any() or not weights.sum():
            return missing({name: "%"}, SOURCE, "the trace estimates none")
        return {name: self._reading(name, float(np.average(shares[known], weights=weights)), "", "launch arithmetic")}

    def kernels(self) -> list[dict[str, object]]:
        """A row for each kernel and copy, the longest first: calls, summed seconds, share of all device time."""
        return kernel_table(
            self.recording.names, self.recording.activities.name[self.inside], self.kind, self.end - self.begin
        )

    def collectives(self) -> dict[str, list[int]]:
        """Communication kernels by name, in order of their begin: ns of each."""
        found: dict[str, list[int]] = {}
        chosen = np.flatnonzero(self.kind == COMMUNICATION)
        for one in chosen[np.argsort(self.begin[chosen], kind="stable")].tolist():
            name = self.recording.names[self.recording.activities.name[self.inside[one]]].partition("(")[0]
            found.setdefault(name, []).append(int(self.end[one] - self.begin[one]))
        return found

    def others(self) -> dict[str, int]:
        """Kernel time of each outermost operator that is no product."""
        chosen = (self.kind == COMPUTE) & (self.product < 0) & (self.operator >= 0) & ~self.graph
        found: Counter[str] = Counter()
        names = self.recording.host.name[self.operator[chosen]]
        for name, time in zip(names.tolist(), (self.end - self.begin)[chosen].tolist(), strict=True):
            found[_called(self.recording.names[name])] += time
        return dict(found)


# What a window's time is spent on, each nanosecond once: products of known FLOPs, the same again for a checkpoint,
# products of unknown FLOPs, other operators, what a graph launched, and what none of these covers.
SPENT = (*("products", "recomputed", "uncounted", "others", "graph", "communication", "copies", "input_wait", "idle"),)


def _multiplying(spent: dict[str, int]) -> int:
    return spent["products"] + spent["recomputed"] + spent["uncounted"]


class _HostTime:
    """The window by what the thread of the steps called in it: a CPU's time."""

    def __init__(self, recording: Recording, attribution: Attribution, window: Window, counted: set[int]) -> None:
        self.recording, self.attribution, self.window = recording, attribution, window
        self.notes: list[str] = []
        host = recording.host
        inside = window.called(host.begin) & ~host.annotation
        threads, counts = np.unique(host.thread[inside], return_counts=True)
        marked = [
            int(host.thread[index])
            for index in np.flatnonzero(host.annotation)
            if int(host.begin[index]) == window.begin
        ]
        self.thread = marked[0] if marked else int(threads[counts.argmax()]) if len(threads) else -1
        self.inside = np.flatnonzero(inside & (host.thread == self.thread))
        self.roots = {int(one) for one in self.inside if attribution.product[one] == one}  # products, each in no other
        gloo = np.array([name.startswith(GLOO) for name in recording.names], bool)
        self.sent = np.flatnonzero(host.annotation & gloo[host.name] & window.called(host.begin))
        asks = np.array([name.startswith(ASKS) for name in recording.names], bool)[host.name]
        outer = self.inside[(attribution.outermost[self.inside] == self.inside) & ~asks[self.inside]]
        mine = np.array(sorted(self.roots), np.int64)
        known = np.isin(mine, np.fromiter(counted, np.int64, len(counted)))
        again = known & attribution.recomputed[mine]
        spans = [mine[known & ~again], mine[again], mine]
        kinds = [*map(self._spans, spans), _waits(recording), self._spans(outer), self._spans(self.sent)]
        parts = exclusive(kinds, window.begin, window.end)
        names = ("products", "recomputed", "uncounted", "input_wait", "others", "communication", "idle")
        self.spent = dict.fromkeys(SPENT, 0) | dict(zip(names, parts, strict=True))
        self.outer = outer

    def _spans(self, chosen: Any) -> Intervals:
        return Intervals(self.recording.host.begin[chosen], self.recording.host.end[chosen])

    def readings(self) -> Readings:
        wall, source = self.window.length, "operators on the host"
        found = missing({**UNITS, **TRACE_UNITS}, SOURCE, f"{NO_KERNELS}: see operators.csv")
        fused = self.others().get(FUSED, 0)
        if not _multiplying(self.spent) + self.spent["others"]:
            return {**found, **missing(OPERATOR_UNITS, source, "the trace holds no time of any operator")}
        if fused and not _multiplying(self.spent):
            reason = "compiled code holds its products itself, and no operator tells them apart"
            return {**found, **missing(OPERATOR_UNITS, source, reason)}
        shares = {
            "matmul_percent": _multiplying(self.spent),
            "other_operators_percent": self.spent["others"],
            "idle_input_percent": self.spent["input_wait"],
        }
        if len(self.sent):
            within = clip(self._spans(self.sent), self.window.begin, self.window.end)
            shares["communication_percent"] = self.spent["communication"]
            shares["communication_total_percent"] = length(union(within))
        steps = f"{source}, {self.window.steps} steps"
        return found | {name: Reading(100 * time / wall, "%", steps, wall / 1e9) for name, time in shares.items()}

    def kernels(self) -> list[dict[str, object]]:
        """None: a CPU has no kernels."""
        return []

    def collectives(self) -> dict[str, list[int]]:
        """Collectives of gloo by name, in order of their begin: ns of each, from its queue to its end."""
        host, found = self.recording.host, dict[str, list[int]]()
        for one in self.sent[np.argsort(host.begin[self.sent], kind="stable")].tolist():
            found.setdefault(self.recording.names[host.name[one]], []).append(int(host.end[one] - host.begin[one]))
        return found

    def others(self) -> dict[str, int]:
        """Time of each outermost operator that is no product, without the products inside it."""
        host, found = self.recording.host, Counter[str]()
        for one in self.outer.tolist():
            if one not in self.roots:
                found[_called(self.recording.names[host.name[one]])] += int(host.end[one] - host.begin[one])
        for root in self.roots:
            above = int(self.attribution.outermost[root])
            if above not in (root, -1):
                found[_called(self.recording.names[host.name[above]])] -= int(host.end[root] - host.begin[root])
        return dict(found)


def _called(name: str) -> str:
    return FUSED if name.startswith(COMPILED) else name


def _waits(recording: Recording) -> Intervals:
    """The spans in which the host waited for its DataLoader."""
    loads = np.array([bool(LOADER.search(name)) for name in recording.names], bool)
    chosen = np.flatnonzero(loads[recording.host.name]) if len(recording.host) else np.empty(0, np.int64)
    return Intervals(recording.host.begin[chosen], recording.host.end[chosen])


def kernel_table(names: list[str], name: Any, kind: Any, times: Any) -> list[dict[str, object]]:
    """A row for each kernel and copy, the longest first."""
    if not len(name) or not times.sum():
        return []
    unique, places = np.unique(np.stack((name, kind)), axis=1, return_inverse=True)
    sums, calls = np.bincount(places, weights=times), np.bincount(places)
    total = float(times.sum())
    return [
        {
            "kernel": names[unique[0, one]],
            "kind": KINDS[unique[1, one]],
            "calls": int(calls[one]),
            "time_s": float(sums[one]) / 1e9,
            "share_percent": 100 * float(sums[one]) / total,
        }
        for one in np.argsort(-sums, kind="stable")
    ]


def top_kernels(table: list[dict[str, Any]]) -> str | None:
    """The five longest kernels as JSON: name → share of device time in percent."""
    return json.dumps({row["kernel"]: round(row["share_percent"], 1) for row in table[:5]}) if table else None


def _products(
    recording: Recording, attribution: Attribution, window: Window, on_gpu: bool
) -> tuple[list[Product], dict[str, tuple[int, str]], set[int]]:
    """The window's products with their FLOPs, those whose FLOPs are not told, and the calls of which they are."""
    host, activities = recording.host, recording.activities
    roots = np.flatnonzero((attribution.product == np.arange(len(host))) & window.called(host.begin))
    times: Counter[int] = Counter()
    kernels: dict[int, list[int]] = {}
    if on_gpu:
        owners = attribution.product_of_activity()
        for one in np.flatnonzero((owners >= 0) & (activities.kind == COMPUTE)).tolist():
            times[int(owners[one])] += int(activities.end[one] - activities.begin[one])
            kernels.setdefault(int(owners[one]), []).append(one)
    else:
        for root in roots.tolist():
            times[root] += int(host.end[root] - host.begin[root])
            above = int(attribution.around[root])
            if above >= 0:  # a product of unknown FLOPs around it, of which the rest is left
                times[above] -= int(host.end[root] - host.begin[root])
    costs = attribution.costs
    found: dict[Any, Product] = {}
    counted: set[int] = set()
    untold = Recorded(None, reason="no shapes: record with record_shapes=True")
    for root in roots.tolist():
        call = host.calls.get(root)
        inner = host.calls.get(attribution.innermost[root], call)
        launched = [recording.names[activities.name[one]] for one in kernels.get(root, ())]
        product_format = recorded_format(inner.types) if inner else None
        if product_format == "fp32" and any(map(rounds_to_tf32, launched)):
            product_format = "tf32"
        again = bool(attribution.recomputed[root])
        main = max(
            (one for one in kernels.get(root, ()) if multiplies(recording.names[activities.name[one]])),
            key=lambda one: int(activities.end[one] - activities.begin[one]),
            default=None,
        )
        name = recording.names[host.name[root]]
        kernel = "" if main is None else recording.names[activities.name[main]]
        key = (id(call) if call else name, product_format, again, kernel)
        product = found.get(key)
        if product is None:
            shapes = str([shape for shape in call.shapes if shape]) if call and any(call.shapes) else ""
            product = found[key] = Product(name, shapes, product_format, again, kernel=kernel)
            recorded = costs.get(id(call), untold)
            product.reason, product.matmul = recorded.reason, recorded.matmul
            if main is not None and recorded.matmul and (tile := tile_of(kernel)):
                batch, m, n, _ = recorded.matmul
                product.tile, product.padding = tile, padding(m, n, tile, int(activities.blocks[main]), batch)
        recorded = costs.get(id(call), untold)
        if recorded.cost is not None:
            counted.add(root)
        product.calls += 1
        product.time_ns += times[root]
        cost = recorded.cost or Cost(0, 0, 0)
        product.flops += cost.flops
        product.causal_flops += cost.causal_flops
        product.executed_flops += cost.executed_flops
        product.recorded_flops += (call.recorded_flops or 0) if call else 0
    told = (product for product in found.values() if product.time_ns or not product.reason)
    ordered = sorted(told, key=lambda product: -product.time_ns)
    uncounted: dict[str, tuple[int, str]] = {}
    for product in ordered:
        if product.reason:
            before = uncounted.get(product.name, (0, product.reason))
            uncounted[product.name] = (before[0] + product.time_ns, before[1])
    if on_gpu:
        uncounted |= _unknown(recording, attribution, window)
    return ordered, uncounted, counted


def _unknown(recording: Recording, attribution: Attribution, window: Window) -> dict[str, tuple[int, str]]:
    """Operators without a formula whose kernels multiply by their names, and such kernels of no operator."""
    activities, host = recording.activities, recording.host
    by_name = np.array([multiplies(name) for name in recording.names], bool)
    chosen = (
        (activities.kind == COMPUTE)
        & by_name[activities.name]
        & (attribution.product_of_activity() < 0)
        & (activities.begin >= window.begin)
        & (activities.begin < window.end)
    )
    found: dict[str, tuple[int, str]] = {}
    owners = attribution.operator_of_activity()
    for one in np.flatnonzero(chosen):
        graph = attribution.by_graph[one]
        if graph or owners[one] < 0:
            name = recording.names[activities.name[one]]
            reason = "launched by a graph" if graph else "launched before the trace or outside of any operator"
        else:
            name, reason = _called(recording.names[host.name[owners[one]]]), "no formula for this operator"
        time = int(activities.end[one] - activities.begin[one])
        found[name] = (found.get(name, (0, ""))[0] + time, reason)
    return found
