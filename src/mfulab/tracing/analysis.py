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
from mfulab.tracing.trace import COMPUTE, Trace, Transfer
from mfulab.tracing.window import Window

RATIOS = ("executed_ratio", "issued_ratio")
# Sides are padded to a multiple of this: whole tiles and whole loads of every library.
PADDED = 64
IDLE = ("idle", "input_wait")  # kinds of time in which the device executes nothing
# Longest time of an empty kernel, which a trace of long kernels does not show.
EMPTY_NS = 5_000


@dataclass(frozen=True)
class Operator:
    """Calls of one operator with one shape in a window."""

    kind: str
    operator: str
    shapes: str
    time_ns: int  # exclusive
    calls: int = 0
    kernel_ns: int = 0  # of its kernels, overlapped or not
    # launch cost: kernels × the window's shortest kernel, at most `EMPTY_NS` each
    launch_ns: int = 0
    # executed by all calls, by number format; None if the record of a call lacks them
    flops: dict[str, int] | None = None
    bytes: float | None = None  # least bytes that all calls move; None likewise
    reason: Said | None = None  # why FLOPs or bytes are None


@dataclass(frozen=True)
class _Scale:
    """Length of a window without a trace, in ns, and the factors from times in the trace to times
    without it."""

    length: int
    active: float = 1.0  # of time in which the device executed something
    idle: float = 1.0


@dataclass
class Analysis:
    """Time, FLOPs and products of one window of a trace."""

    window: Window
    readings: Readings  # shares, gaps and latencies, by column
    spent: dict[str, int]  # ns of each kind of time, exclusive: they sum to the window
    products: list[Product]  # by operator, shapes and format, longest first
    uncounted: dict[str, tuple[int, Said]]  # products without FLOPs → ns and the reason
    told: DeviceTime | HostTime  # the window's time, on a device or on a CPU
    held: OfWindow  # facts that all devices of the window share
    backward: bool  # True if a backward pass was recorded in it
    device: int | None = None  # the device's number; None if the trace holds only one
    # `parts` with the FLOPs and bytes of their calls; empty on a CPU
    operators: list[Operator] = field(default_factory=list)
    notes: list[Said] = field(default_factory=list)

    def __post_init__(self) -> None:
        device_time = self.told
        self.on_gpu = isinstance(device_time, DeviceTime)
        self.kernels = device_time.kernels()  # rows of kernels and copies, longest first
        self.gaps = device_time.longest_gaps()  # cause, ns, and what ended each
        self.others = device_time.others()  # outermost operators that are no products → ns
        # communication kernels by name → ns of each, in order of begin
        self.collectives = device_time.collectives()
        # ns by kind of time, operator and shapes; they sum to the window
        self.parts = device_time.parts
        # cause of idle time → ns, which sum to `spent["idle"]`; empty on a CPU
        self.idle_causes = device_time.idle_causes

    def begun_transfers(self) -> list[Transfer]:
        """Kernels of collectives that begin in the window, with their bytes, in order of begin."""
        transfers = self.held.transfers(self.device)
        first, last = self.window.begin, self.window.end
        return [transfer for transfer in transfers if first <= transfer.begin < last]

    @property
    def counted(self) -> list[Product]:
        """Products whose FLOPs are known."""
        return [product for product in self.products if not product.reason]

    @property
    def needed(self) -> list[Product]:
        """Products whose FLOPs are known and that the model needs, without a checkpoint's
        recomputation."""
        return [product for product in self.counted if not product.recomputed]

    def flops(self, count: str = "flops", recomputed: bool = False) -> dict[str, int]:
        """Sums the window's FLOPs per number format. `count` is the field of `Product` to sum:
        `flops`, `causal_flops` or `executed_flops`. `recomputed` includes a checkpoint's
        recomputation."""
        by_format = Counter[str]()
        for product in self.counted if recomputed else self.needed:
            by_format[product.format or "unknown"] += getattr(product, count)
        return dict(by_format)

    def ratios(self) -> dict[str, float | None]:
        """Operations that kernels execute ÷ counted FLOPs, and the same weighted by each kernel's
        slowdown. Both are None if no kernel's name or grid reveals them."""
        executed = 0
        tiled = issued = 0.0
        is_known = False
        for product in self.counted:
            executed += product.executed_flops
            ratio = product.executed_ratio
            is_known = is_known or bool(product.tile or ratio)
            flops = product.executed_flops * (1.0 if ratio is None else ratio)
            tiled += flops
            issued += flops * product.slowdown
        if not executed or not is_known:
            return dict.fromkeys(RATIOS)
        return dict(zip(RATIOS, (tiled / executed, issued / executed), strict=True))

    def misaligned(self) -> str | None:
        """JSON with the numbers of the matmul that would gain most if its side were a multiple of
        16 bytes; None if no matmul would gain. `best_ms` is the time of the padded matmul at the
        best speed of its format in the window."""
        timed = [product for product in self.counted if product.matmul and product.time_ns]
        fastest = defaultdict[str | None, float](float)  # FLOPs per ns, by format
        for product in timed:
            speed = product.flops / product.time_ns
            fastest[product.format] = max(fastest[product.format], speed)
        largest_gain = 0.0
        numbers = dict[str, float]()
        for product in timed:
            side = product.misaligned_side
            if not side:
                continue
            padded = -(-side // PADDED) * PADDED
            ms = product.time_ns / 1e6 / self.window.steps
            best_ns = product.flops * padded / side / fastest[product.format]
            best_ms = best_ns / 1e6 / self.window.steps
            if ms - best_ms >= largest_gain and ms > best_ms:
                largest_gain = ms - best_ms
                numbers = {"side": side, "padded": padded, "ms": ms, "best_ms": best_ms}
                numbers |= {"rate": 100 / product.slowdown}
        if numbers:
            return packed(numbers)
        return None

    def untraced(self, step_s: float) -> "Analysis":
        """Rescales the analysis to steps of `step_s` seconds, the step time without a trace. A
        trace lengthens only the host's part, so idle time becomes what the kernels leave, by cause
        as in the trace. In longer steps the kernels are scaled up: the power limit lowered their
        clock. Returns the analysis unchanged for a CPU, or if the kernels alone took longer than
        the steps."""
        length = round(step_s * 1e9 * self.window.steps)
        idle = self.spent["idle"] + self.spent["input_wait"]
        active = self.window.length - idle
        if not self.on_gpu or not 0 < active <= length:
            return self
        scale = _Scale(length)
        if length > self.window.length:
            scale = _Scale(length, active=(length - idle) / active)
        elif idle:
            scale = _Scale(length, idle=(length - active) / idle)
        return replace(
            self,
            window=replace(self.window, end=self.window.begin + length),
            spent=self._scaled_spent(scale),
            readings=self._scaled_readings(scale),
        )

    def _scaled_spent(self, scale: _Scale) -> dict[str, int]:
        """Nanoseconds of each kind of time, which sum to the window without a trace."""
        spent = dict[str, int]()
        for kind, time in self.spent.items():
            factor = scale.idle if kind in IDLE else scale.active
            spent[kind] = round(time * factor)
        kind_of_rest = "idle"
        if scale.length > self.window.length and spent["products"]:
            kind_of_rest = "products"
        spent[kind_of_rest] += scale.length - sum(spent.values())
        return spent

    def _scaled_readings(self, scale: _Scale) -> Readings:
        """Readings of the window without a trace; those that do not depend on its length stay."""
        per_window = self.window.length / scale.length
        factors = dict[str, float]()
        for name in self.readings:
            if name.endswith("_percent"):
                factors[name] = per_window * scale.active
        factors["idle_percent"] = per_window * scale.idle
        factors["launch_bound_percent"] = per_window * scale.idle
        factors["launch_gap_s"] = scale.idle
        readings = self.readings.copy()
        for name, factor in factors.items():
            old = self.readings[name]
            source = f"{old.source} ÷ untraced time"
            readings[name] = replace(old, value=old.value and old.value * factor, source=source)
        return readings

    def top_kernels(self) -> str | None:
        """JSON of the five longest kernels: name → share of device time in percent; None if there
        are no kernels."""
        shares = {row["kernel"]: round(row["share_percent"], 1) for row in self.kernels[:5]}
        if shares:
            return json.dumps(shares)
        return None

    def top_other_operators(self) -> str | None:
        """JSON of the five longest operators that are not products: name → share of the window in
        percent. None if there are none, or if operators have no shares."""
        longest = sorted(self.others.items(), key=lambda item: -item[1])[:5]
        shares = {}
        for name, time in longest:
            if time:
                shares[name] = round(100 * time / self.window.length, 1)
        if shares and self.readings["matmul_percent"].value is not None:
            return json.dumps(shares)
        return None


def analyse(trace: Trace, window: Window) -> Analysis:
    """Analyses one window of a trace; if the trace holds several devices, the device with most
    activities."""
    return of_device(OfWindow(trace, attribute(trace), window))


def of_device(facts: OfWindow, device: int | None = None) -> Analysis:
    """Analyses one device of a window, by default the one with most activities."""
    trace, window = facts.trace, facts.window
    devices = facts.devices
    if len(devices) < 2:
        device = None
    elif device is None:
        device = devices[0]
    products = products_of(facts, device)
    counted = set()
    for call, product in products.of_call.items():
        if not product.reason:
            counted.add(call)
    device_time = (
        DeviceTime(facts, counted, device)
        if len(trace.activities)
        else HostTime(trace, facts.attribution, window, counted)
    )
    operators = list[Operator]()
    if isinstance(device_time, DeviceTime):
        operators = _operators(trace, device_time, products.of_call)
    return Analysis(
        window=window,
        readings=device_time.readings(),
        spent=device_time.spent,
        products=products.listed,
        uncounted=products.uncounted,
        told=device_time,
        held=facts,
        backward=facts.has_backward,
        device=device,
        operators=operators,
        notes=_notes(trace, devices, device),
    )


class _Traffic:
    """Least bytes that each call moves, or the reason why they are unknown."""

    def __init__(self, trace: Trace, of_call: dict[int, Product]) -> None:
        self._calls = trace.host.calls
        self._of_call = of_call
        # By id() of a call's arguments, which equal calls share.
        self._of_arguments = dict[int, float | Said]()

    def of(self, owned: Owned) -> float | Said:
        """Bytes moved by one call, or the reason why they are unknown."""
        product = self._of_call.get(owned.key)
        if product is not None:
            if product.call_bytes is not None:
                return product.call_bytes
            return product.reason or Said("no_bytes", operator=product.name)
        if not owned.is_call:
            return Said("of_no_operator")
        call = self._calls.get(owned.key)
        if call is None:
            return NO_SHAPES
        if id(call) not in self._of_arguments:
            moved = traced_bytes(call.name, call.shapes, call.types, call.values)
            self._of_arguments[id(call)] = moved
        return self._of_arguments[id(call)]


def _operators(
    trace: Trace, device_time: DeviceTime, of_call: dict[int, Product]
) -> list[Operator]:
    """Lists the parts of a device's time with the FLOPs and least bytes of their calls."""
    executed = device_time.executed
    lengths = executed.lengths[executed.kind == COMPUTE]
    lengths = lengths[lengths > 0]
    shortest = 0
    if len(lengths):
        shortest = min(int(lengths.min()), EMPTY_NS)
    traffic = _Traffic(trace, of_call)
    operators = []
    for (kind, name, shapes), time in device_time.parts.items():
        launched = device_time.launched_by.get((kind, name, shapes), [])
        operator = Operator(
            kind=kind,
            operator=name,
            shapes=shapes,
            time_ns=time,
            calls=sum(owned.calls for owned in launched),
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
    """Adds the FLOPs and bytes of its calls to an operator, or the reason if the record of a call
    lacks them."""
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


def _notes(trace: Trace, devices: list[int], device: int | None) -> list[Said]:
    notes = list(trace.notes)
    if device is not None:
        notes.append(Said("several_devices", count=len(devices), device=device))
    number = device
    if number is None:
        number = next(iter(devices), -1)
    if trimmed := trace.trimmed.get(number):
        notes.append(Said("trimmed_overlap", count=trimmed[0], ms=trimmed[1] / 1e6))
    properties = trace.device_properties(device)
    if properties.get("peak_tflop_s"):
        bandwidth = properties.get("peak_gb_s") or 0.0
        notes.append(Said("own_peak", peak=properties["peak_tflop_s"], bandwidth=bandwidth))
    return notes
