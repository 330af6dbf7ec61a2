"""Analysis of one window of a trace: its time by kind and operator, and its FLOPs."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from mfulab.core.said import Said, packed
from mfulab.device.samplers.reading import Readings
from mfulab.flops.traced import NO_SHAPES, traced_bytes
from mfulab.tracing.attribution import attribute
from mfulab.tracing.device_time import DeviceTime, Owned
from mfulab.tracing.host_time import HostTime
from mfulab.tracing.of_window import OfWindow
from mfulab.tracing.products import Product, products_of
from mfulab.tracing.shares import SPENT
from mfulab.tracing.trace import COMPUTE, Trace
from mfulab.tracing.window import Window

RATIOS = ("executed_ratio", "issued_ratio")
# elements to a multiple of which a side is padded: whole tiles and whole loads of every library
PADDED = 64
# that a kernel of no work takes at most: a trace of long kernels alone does not show it
EMPTY_NS = 5_000


@dataclass(frozen=True)
class Operator:
    """Calls of one operator with one shape in a window."""

    kind: str
    operator: str
    shapes: str
    time_ns: int  # exclusive
    calls: int = 0
    kernel_ns: int = 0  # of their kernels, overlapped or not
    # of as many kernels as short as the shortest of the window, or as an empty one takes
    launch_ns: int = 0
    # by format, executed by all calls; None where a call's record lacks it
    flops: dict[str, int] | None = None
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
    held: OfWindow
    of_call: dict[int, Product]  # the product of each call
    backward: bool  # whether a backward pass was recorded in it
    # the number of the device that it is of, where the trace holds several
    device: int | None = None
    operators: list[Operator] = field(
        default_factory=list
    )  # `parts` with what their calls compute and move
    notes: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        device_time = self.told
        self.on_gpu = isinstance(device_time, DeviceTime)
        self.kernels = device_time.kernels()  # a row for each kernel and copy, longest first
        self.gaps = (
            device_time.longest_gaps()
        )  # the longest idle ones: cause, ns, and what ended each
        self.others = device_time.others()  # outermost other operators → ns of their kernels
        # communication kernels by name → ns of each, in order
        self.collectives = device_time.collectives()
        self.parts = (
            device_time.parts
        )  # ns by kind of time, operator and shapes; they sum to the window
        # why the device was idle → ns, in all `spent["idle"]`; none on a CPU
        self.idle_causes = device_time.idle_causes

    @property
    def counted(self) -> list[Product]:
        """The products whose FLOPs are known."""
        return [product for product in self.products if not product.reason]

    @property
    def needed(self) -> list[Product]:
        """Products whose FLOPs are known and that the model needs: not those that a checkpoint
        computes again."""
        return [product for product in self.counted if not product.recomputed]

    @property
    def call_flops(self) -> dict[int, int]:
        """FLOPs of each call of a product that the model needs."""
        needed = (
            (call, work)
            for call, work in self.of_call.items()
            if not work.reason and not work.recomputed
        )
        return {call: work.flops // work.calls for call, work in needed}

    def flops(self, what: str = "flops", recomputed: bool = False) -> dict[str, int]:
        """FLOPs of the window by number format: `flops`, `causal_flops` or `executed_flops`."""
        by_format = Counter[str]()
        for product in self.counted if recomputed else self.needed:
            by_format[product.format or "unknown"] += getattr(product, what)
        return dict(by_format)

    def ratios(self) -> dict[str, float | None]:
        """Operations executed, and these at their instructions' rates ÷ FLOPs counted; None where
        no kernel tells."""
        executed = 0
        tiled = issued = 0.0
        is_told = False
        for product in self.counted:
            executed += product.executed_flops
            ratio = product.executed_ratio
            is_told = is_told or bool(product.tile or ratio)
            flops = product.executed_flops * (1.0 if ratio is None else ratio)
            tiled += flops
            issued += flops * product.slowdown
        if not executed or not is_told:
            return dict.fromkeys(RATIOS)
        return dict(zip(RATIOS, (tiled / executed, issued / executed), strict=True))

    def misaligned(self) -> str | None:
        """JSON: numbers of the sentence on the matmul that a side of whole 16 bytes would gain
        most; None without one. `best_ms` is the padded matmul at the best speed of its format in
        the window."""
        timed = []
        for work in self.counted:
            if work.matmul and work.time_ns:
                timed.append(work)
        fastest = defaultdict[str | None, float](float)  # FLOPs a nanosecond, by format
        for product in timed:
            speed = product.flops / product.time_ns
            fastest[product.format] = max(fastest[product.format], speed)
        most = 0.0
        numbers = dict[str, float]()
        for product in timed:
            side = product.misaligned_side
            if not side:
                continue
            padded = -(-side // PADDED) * PADDED
            ms = product.time_ns / 1e6 / self.window.steps
            best_ns = product.flops * padded / side / fastest[product.format]
            best_ms = best_ns / 1e6 / self.window.steps
            if ms - best_ms >= most and ms > best_ms:
                most = ms - best_ms
                numbers = {"side": side, "padded": padded, "ms": ms, "best_ms": best_ms}
                numbers |= {"rate": 100 / product.slowdown}
        if numbers:
            return packed(numbers)
        return None

    def untraced(self, step_s: float) -> "Analysis":
        """Shares of steps of `step_s` seconds, as they take without a trace, which lengthens the
        host's part alone. Idle time is what the kernels leave, by cause as in the trace; in longer
        steps the kernels were slower, by the clock that the power limit allows. All stays as traced
        where the kernels alone took longer."""
        length = round(step_s * 1e9 * self.window.steps)
        idle = self.spent["idle"] + self.spent["input_wait"]
        active = self.window.length - idle
        if not self.on_gpu or not 0 < active <= length:
            return self
        is_slower = length > self.window.length
        slower = 1.0
        if is_slower:
            slower = (length - idle) / active
        waits = 1.0
        if idle and not is_slower:
            waits = (length - active) / idle
        factors = {"idle": waits, "input_wait": waits}
        spent = {kind: round(time * factors.get(kind, slower)) for kind, time in self.spent.items()}
        spent["products" if is_slower and spent["products"] else "idle"] += length - sum(
            spent.values()
        )
        per = self.window.length / length
        readings = dict(self.readings)
        shares = {}
        for name in self.readings:
            if name.endswith("_percent"):
                shares[name] = per * slower
        shares |= dict.fromkeys(("idle_percent", "launch_bound_percent"), per * waits)
        for name, factor in (shares | {"launch_gap_s": waits}).items():
            value = readings[name].value
            source = f"{readings[name].source} ÷ untraced time"
            readings[name] = replace(readings[name], value=value and value * factor, source=source)
        if not idle and not is_slower:
            readings["idle_percent"] = replace(
                readings["idle_percent"], value=100 * spent["idle"] / length
            )
        window = replace(self.window, end=self.window.begin + length)
        return replace(self, window=window, spent=spent, readings=readings)

    def top_kernels(self) -> str | None:
        """The five longest kernels as JSON: name → share of device time in percent."""
        shares = {row["kernel"]: round(row["share_percent"], 1) for row in self.kernels[:5]}
        if shares:
            return json.dumps(shares)
        return None

    def top_other_operators(self) -> str | None:
        """The five longest other operators as JSON: name → share of the window in percent."""
        longest = sorted(self.others.items(), key=lambda item: -item[1])[:5]
        shares = {}
        for name, time in longest:
            if time:
                shares[name] = round(100 * time / self.window.length, 1)
        if shares and self.readings["matmul_percent"].value is not None:
            return json.dumps(shares)
        return None


def analyse(trace: Trace, window: Window) -> Analysis:
    """Analyses one window of a trace, of several devices the one with most activities."""
    return of_device(OfWindow(trace, attribute(trace), window))


def of_device(held: OfWindow, device: int | None = None) -> Analysis:
    """Analyses one device of a window, without a number the one with most activities."""
    trace, window = held.trace, held.window
    several = held.devices
    device = (several[0] if device is None else device) if len(several) > 1 else None
    products = products_of(held, device)
    counted = set()
    for call, product in products.of_call.items():
        if not product.reason:
            counted.add(call)
    device_time = (
        DeviceTime(held, counted, device)
        if len(trace.activities)
        else HostTime(trace, held.attribution, window, counted)
    )
    return Analysis(
        window, device_time.readings(), device_time.spent, products.listed, products.uncounted, device_time, held,
        products.of_call, held.has_backward, device,
        _operators(trace, device_time, products.of_call) if isinstance(device_time, DeviceTime) else [],
        _notes(trace, several, device),
    )  # fmt: skip


class _Traffic:
    """Bytes that calls move, or why their records do not tell them."""

    def __init__(self, trace: Trace, of_call: dict[int, Product]) -> None:
        self._calls = trace.host.calls
        self._of_call = of_call
        # By the identity of a call's arguments, which equal calls share.
        self._of_arguments = dict[int, float | Said]()

    def of(self, owned: Owned) -> float | Said:
        """Bytes of one call."""
        product = self._of_call.get(owned.key)
        if product is not None:
            return self._of_product(product)
        if not owned.is_call:
            return Said("of_no_operator")
        call = self._calls.get(owned.key)
        if call is None:
            return NO_SHAPES
        if id(call) not in self._of_arguments:
            moved = traced_bytes(call.name, call.shapes, call.types, call.values)
            self._of_arguments[id(call)] = moved
        return self._of_arguments[id(call)]

    @staticmethod
    def _of_product(product: Product) -> float | Said:
        if product.call_bytes is not None:
            return product.call_bytes
        return product.reason or Said("no_bytes", {"operator": product.name})


def _operators(
    trace: Trace, device_time: DeviceTime, of_call: dict[int, Product]
) -> list[Operator]:
    """Parts of the time with what their calls compute and move at least."""
    lengths = (device_time.end - device_time.begin)[
        (device_time.kind == COMPUTE) & (device_time.end > device_time.begin)
    ]
    shortest = 0
    if len(lengths):
        shortest = min(int(lengths.min()), EMPTY_NS)
    traffic = _Traffic(trace, of_call)
    operators = []
    for (kind, name, shapes), time in device_time.parts.items():
        launched = device_time.launched_by.get((kind, name, shapes), [])
        operator = Operator(
            kind,
            name,
            shapes,
            time,
            calls=sum(1 if owned.is_call else owned.kernels for owned in launched),
            kernel_ns=sum(owned.kernel_ns for owned in launched),
            launch_ns=shortest * sum(owned.kernels for owned in launched),
            reason=Said("by_graph") if kind == "graph" else None,
        )
        if launched and kind in SPENT[:4]:
            operator = _with_work(operator, launched, traffic, of_call)
        operators.append(operator)
    return operators


def _with_work(
    operator: Operator, launched: list[Owned], traffic: _Traffic, of_call: dict[int, Product]
) -> Operator:
    """The operator with FLOPs and bytes of its calls, or why one's record does not tell them."""
    size = 0.0
    for owned in launched:
        moved = traffic.of(owned)
        if isinstance(moved, Said):
            return replace(operator, reason=moved)
        size += moved
    flops = Counter[str]()
    for owned in launched:
        product = of_call.get(owned.key)
        if product is not None:
            flops[product.format or "unknown"] += product.executed_flops // product.calls
    return replace(operator, flops=dict(flops), bytes=size)


def _notes(trace: Trace, several: list[int], device: int | None) -> list[Said]:
    notes = list(trace.notes)
    if device is not None:
        notes.append(Said("several_devices", {"count": len(several), "device": device}))
    number = next(iter(several), -1) if device is None else device
    if trimmed := trace.trimmed.get(number):
        notes.append(Said("trimmed_overlap", {"count": trimmed[0], "ms": trimmed[1] / 1e6}))
    properties = trace.device_properties(device)
    if properties.get("peak_tflop_s"):
        notes.append(
            Said(
                "own_peak",
                {
                    "peak": properties["peak_tflop_s"],
                    "bandwidth": properties.get("peak_gb_s") or 0.0,
                },
            )
        )
    return notes
