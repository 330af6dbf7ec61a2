"""Analysis of one window of a trace: its time by kind and operator, and its FLOPs."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from mfulab.core.said import Numbers, Said, packed
from mfulab.device.samplers.reading import Readings
from mfulab.flops.traced import NO_SHAPES, traced_bytes
from mfulab.tracing.attribution import Attribution, attribute
from mfulab.tracing.device_time import DeviceTime
from mfulab.tracing.host_time import HostTime
from mfulab.tracing.products import Product, products_of
from mfulab.tracing.shares import SPENT
from mfulab.tracing.trace import COMPUTE, Trace
from mfulab.tracing.window import Window

RATIOS = ("executed_ratio", "issued_ratio")
PADDED = 64  # elements to a multiple of which a side is padded: whole tiles and whole loads of every library
EMPTY_NS = 5_000  # that a kernel of no work takes at most: a trace of long kernels alone does not show it


@dataclass(frozen=True)
class Operator:
    """Calls of one operator with one shape in a window."""

    kind: str
    operator: str
    shapes: str
    time_ns: int  # exclusive
    calls: int = 0
    kernel_ns: int = 0  # of their kernels, overlapped or not
    launch_ns: int = 0  # of as many kernels as short as the shortest of the window, or as an empty one takes
    flops: dict[str, int] | None = None  # by format, executed by all calls; None where a call's record lacks it
    bytes: float | None = None  # moved at least by all calls; None likewise
    reason: Said | None = None  # why FLOPs or bytes are None


@dataclass
class Analysis:
    """Everything that a trace holds about one window."""

    window: Window
    readings: Readings  # shares, gaps and latencies, by column
    spent: dict[str, int]  # ns of each kind of time, exclusive: they sum to the window
    products: list[Product]  # by operator, shapes and format, longest first
    uncounted: dict[str, tuple[int, Said]]  # products without FLOPs → ns and the reason
    told: DeviceTime | HostTime
    of_call: dict[int, Product]  # the product of each call
    backward: bool  # whether a backward pass was recorded in it
    device: int | None = None  # the number of the device that it is of, where the trace holds several
    operators: list[Operator] = field(default_factory=list)  # `parts` with what their calls compute and move
    notes: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        told = self.told
        self.on_gpu = isinstance(told, DeviceTime)
        # A row for each kernel and copy, longest first; the longest idle gaps: cause, ns, and what ended each.
        self.kernels, self.gaps = (told.kernels(), told.longest_gaps()) if isinstance(told, DeviceTime) else ([], [])
        self.others = told.others()  # outermost other operators → ns of their kernels
        self.collectives = told.collectives()  # communication kernels by name → ns of each, in order
        self.parts = told.parts  # ns by kind of time, operator and shapes; they sum to the window
        self.idle_causes = told.idle_causes  # why the device was idle → ns, in all `spent["idle"]`; none on a CPU

    @property
    def counted(self) -> list[Product]:
        """The products whose FLOPs are known."""
        return [product for product in self.products if not product.reason]

    @property
    def needed(self) -> list[Product]:
        """Products whose FLOPs are known and that the model needs: not those that a checkpoint computes again."""
        return [product for product in self.counted if not product.recomputed]

    @property
    def call_flops(self) -> dict[int, int]:
        """FLOPs of each call of a product that the model needs."""
        needed = ((call, work) for call, work in self.of_call.items() if not work.reason and not work.recomputed)
        return {call: work.flops // work.calls for call, work in needed}

    def flops(self, what: str = "flops", recomputed: bool = False) -> dict[str, int]:
        """FLOPs of the window by number format: `flops`, `causal_flops` or `executed_flops`."""
        by_format = Counter[str]()
        for product in self.counted if recomputed else self.needed:
            by_format[product.format or "unknown"] += getattr(product, what)
        return dict(by_format)

    def ratios(self) -> dict[str, float | None]:
        """Operations executed, and these at their instructions' rates ÷ FLOPs counted; None where no kernel tells."""
        executed = sum(product.executed_flops for product in self.counted)
        is_told = executed and any(product.tile or product.executed_ratio for product in self.counted)
        ratios = (1.0 if product.executed_ratio is None else product.executed_ratio for product in self.counted)
        tiled = [product.executed_flops * ratio for product, ratio in zip(self.counted, ratios, strict=True)]
        issued = [flops * product.slowdown for flops, product in zip(tiled, self.counted, strict=True)]
        return dict(zip(RATIOS, (sum(work) / executed if is_told else None for work in (tiled, issued)), strict=True))

    def misaligned(self) -> str | None:
        """JSON: numbers of the sentence on the matmul that a side of whole 16 bytes would gain most; None without one.
        `best_ms` is the padded matmul at the best speed of its format in the window."""
        timed, gains = [work for work in self.counted if work.matmul and work.time_ns], dict[float, Numbers]()
        for product in timed:
            if side := product.misaligned_side:
                best = max(other.flops / other.time_ns for other in timed if other.format == product.format)
                padded = -(-side // PADDED) * PADDED
                times = product.time_ns, product.flops * padded / side / best
                ms, best_ms = (time / 1e6 / self.window.steps for time in times)
                rate = 100 / product.slowdown
                gains[ms - best_ms] = {"side": side, "padded": padded, "ms": ms, "best_ms": best_ms, "rate": rate}
        return packed(gains[max(gains)]) if max(gains, default=0) > 0 else None

    def untraced(self, step_s: float) -> "Analysis":
        """Shares of steps of `step_s` seconds, as they take without a trace, which lengthens the host's part alone.
        Idle time is what the kernels leave, by cause as in the trace; in longer steps the kernels were slower, by the
        clock that the power limit allows. All stays as traced where the kernels alone took longer."""
        length, idle = round(step_s * 1e9 * self.window.steps), self.spent["idle"] + self.spent["input_wait"]
        active = self.window.length - idle
        if not self.on_gpu or not 0 < active <= length:
            return self
        is_slower = length > self.window.length
        slower = (length - idle) / active if is_slower else 1.0
        waits = (length - active) / idle if idle and not is_slower else 1.0
        factors = {"idle": waits, "input_wait": waits}
        spent = {kind: round(time * factors.get(kind, slower)) for kind, time in self.spent.items()}
        spent["products" if is_slower and spent["products"] else "idle"] += length - sum(spent.values())
        per = self.window.length / length
        readings = dict(self.readings)
        shares = {name: per * slower for name in self.readings if name.endswith("_percent")}
        shares |= dict.fromkeys(("idle_percent", "idle_input_percent", "launch_bound_percent"), per * waits)
        for name, factor in (shares | {"launch_gap_s": waits}).items():
            value, source = readings[name].value, f"{readings[name].source} ÷ untraced time"
            readings[name] = replace(readings[name], value=value and value * factor, source=source)
        if not idle and not is_slower:
            readings["idle_percent"] = replace(readings["idle_percent"], value=100 * spent["idle"] / length)
        window = replace(self.window, end=self.window.begin + length)
        return replace(self, window=window, spent=spent, readings=readings)

    def top_kernels(self) -> str | None:
        """The five longest kernels as JSON: name → share of device time in percent."""
        shares = {row["kernel"]: round(row["share_percent"], 1) for row in self.kernels[:5]}
        return json.dumps(shares) if shares else None

    def top_other_operators(self) -> str | None:
        """The five longest other operators as JSON: name → share of the window in percent."""
        longest = sorted(self.others.items(), key=lambda item: -item[1])[:5]
        shares = {name: round(100 * time / self.window.length, 1) for name, time in longest if time}
        return json.dumps(shares) if shares and self.readings["matmul_percent"].value is not None else None


def analyse(
    trace: Trace, window: Window, attribution: Attribution | None = None, device: int | None = None
) -> Analysis:
    """Analyses one window of a trace: the device of this number, without one the device with most activities."""
    attribution = attribution or attribute(trace)
    several = devices(trace, window)
    device = (several[0] if device is None else device) if len(several) > 1 else None
    products, uncounted, of_call = products_of(trace, attribution, window, device)
    counted = {call for call, product in of_call.items() if not product.reason}
    backward = bool(attribution.backward[window.called(trace.host.begin)].any())
    told = (
        DeviceTime(trace, attribution, window, counted, device)
        if len(trace.activities)
        else HostTime(trace, attribution, window, counted)
    )
    return Analysis(
        window, told.readings(), told.spent, products, uncounted, told, of_call, backward, device,
        _operators(trace, told, of_call) if isinstance(told, DeviceTime) else [],
        _notes(trace, several, device),
    )  # fmt: skip


def _operators(trace: Trace, told: DeviceTime, of_call: dict[int, Product]) -> list[Operator]:
    lengths = (told.end - told.begin)[(told.kind == COMPUTE) & (told.end > told.begin)]
    shortest = min(int(lengths.min()), EMPTY_NS) if len(lengths) else 0
    traffic_of: dict[int, float | Said] = {}  # by the identity of a call's arguments, which equal calls share

    def traffic(index: int) -> float | Said:
        if product := of_call.get(index):
            moved = product.call_bytes
            return product.reason or Said("no_bytes", {"operator": product.name}) if moved is None else moved
        if (call := trace.host.calls.get(index)) is None:
            return Said("of_no_operator") if index < 0 else NO_SHAPES
        if id(call) not in traffic_of:
            traffic_of[id(call)] = traced_bytes(call.name, call.shapes, call.types, call.values)
        return traffic_of[id(call)]

    operators = []
    for part, time in told.parts.items():
        launched = told.launched_by.get(part, [])
        kernels = sum(count for *_, count in launched)
        calls = sum(count if call < 0 else 1 for call, _, count in launched)
        sums = calls, sum(ns for _, ns, _ in launched), shortest * kernels
        moved = [traffic(call) for call, *_ in launched] if part[0] in SPENT[:4] else []
        reason = next((why for why in moved if isinstance(why, Said)), Said("by_graph") if part[0] == "graph" else None)
        if reason or not moved:
            operators.append(Operator(*part, time, *sums, reason=reason))
            continue
        flops = Counter[str]()
        for product in (of_call[call] for call, *_ in launched if call in of_call):
            flops[product.format or "unknown"] += product.executed_flops // product.calls
        size = sum(amount for amount in moved if not isinstance(amount, Said))
        operators.append(Operator(*part, time, *sums, dict(flops), size))
    return operators


def _notes(trace: Trace, several: list[int], device: int | None) -> list[Said]:
    notes = list(trace.notes)
    if device is not None:
        notes.append(Said("several_devices", {"count": len(several), "device": device}))
    number = next(iter(several), -1) if device is None else device
    if trimmed := trace.trimmed.get(number):
        notes.append(Said("trimmed_overlap", {"count": trimmed[0], "ms": trimmed[1] / 1e6}))
    about = trace.device_properties(device)
    if about.get("peak_tflop_s"):
        notes.append(Said("own_peak", {"peak": about["peak_tflop_s"], "bandwidth": about.get("peak_gb_s") or 0.0}))
    return notes


def devices(trace: Trace, window: Window) -> list[int]:
    """Numbers of the devices that executed something in the window, the one with most activities first."""
    inside = window.executed(trace.activities)
    numbers, counts = np.unique(trace.activities.device[inside], return_counts=True)
    return numbers[np.argsort(-counts, kind="stable")].tolist()
