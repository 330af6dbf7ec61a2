"""Matmuls, convolutions and attention of a window: calls, time, FLOPs, tiles; and those of unknown FLOPs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mfulab.core.formats import ELEMENT_BYTES
from mfulab.core.said import Said
from mfulab.flops.cost import Cost
from mfulab.flops.traced import NO_SHAPES, Traced, traced_format
from mfulab.tracing import tiles
from mfulab.tracing.attribution import Attribution
from mfulab.tracing.shares import called
from mfulab.tracing.trace import COMPUTE, Trace
from mfulab.tracing.window import Window

UNTOLD = Traced(None, reason=NO_SHAPES)


@dataclass
class Product:
    """Calls of one product with one shape and number format."""

    name: str
    shapes: str
    format: str | None
    recomputed: bool
    calls: int = 0
    time_ns: int = 0  # of its kernels, on a CPU of its calls
    shortest_ns: int | None = None  # of its fastest call
    elements: int | None = None  # read and written by one call, where known
    bytes_moved: int | None = None  # the same, where the record says it in bytes
    flops: int = 0
    causal_flops: int = 0
    executed_flops: int = 0
    matmul: tuple[int, int, int, int] | None = None
    tile: tuple[int, ...] | None = None
    executed_ratio: float | None = None  # operations that its kernel executes ÷ FLOPs that are counted of it, if told
    slowdown: float = 1.0  # cycles of its instructions ÷ those of the GPU's own
    kernel: str = ""
    reason: Said | None = None

    def add(self, time_ns: int, cost: Cost | None) -> None:
        """Adds one call."""
        self.calls += 1
        self.time_ns += time_ns
        self.shortest_ns = min(time_ns, self.shortest_ns or time_ns) if time_ns else self.shortest_ns
        if cost:
            self.flops += cost.flops
            self.causal_flops += cost.causal_flops
            self.executed_flops += cost.executed_flops

    @property
    def misaligned_side(self) -> int | None:
        """Longest side of a matmul that is no multiple of 16 bytes, where its kernel's loads are shorter for that."""
        step = 16 // ELEMENT_BYTES.get(self.format or "", 4)
        if not self.matmul or tiles.alignment_of(self.kernel) % step == 0:
            return None
        return max((side for side in self.matmul[1:] if side % step), default=None)

    def judge(self, kernels: list[str], recorded: Traced, blocks: int, capability: tuple[int, int]) -> None:
        """Notes what the kernels execute beyond what is counted, and at which rate, each of as many FLOPs."""
        ratios = [tiles.executed_ratio(kernel, recorded, blocks) for kernel in kernels]
        if told := [ratio for ratio in ratios if ratio is not None]:
            self.executed_ratio = sum(told) / len(told)
        self.slowdown = sum(tiles.slowdown_of(kernel, self.format, capability) for kernel in kernels) / len(kernels)
        self.tile = tiles.tile_of(self.kernel)

    @property
    def call_bytes(self) -> float | None:
        """Bytes of one call, each operand and result once; None where its record does not tell them."""
        if self.bytes_moved is not None or self.elements is None or self.format not in ELEMENT_BYTES:
            return self.bytes_moved
        return self.elements * ELEMENT_BYTES[self.format]


def products_of(
    trace: Trace, attribution: Attribution, window: Window, device: int | None = None
) -> tuple[list[Product], dict[str, tuple[int, Said]], dict[int, Product]]:
    """The window's products with their FLOPs, those of unknown FLOPs, and the product of each call, of one device."""
    host, activities, by_key, of_call = trace.host, trace.activities, dict[Any, Product](), dict[int, Product]()
    spans, properties = (activities.end - activities.begin).tolist(), trace.device_properties(device)
    capability = properties.get("computeMajor", 0), properties.get("computeMinor", 0)
    for root, time, kernels in _roots(trace, attribution, window, device):
        call, recorded = host.calls.get(root), attribution.costs.get(root, UNTOLD)
        inner = host.calls.get(attribution.innermost[root], call)
        named = ((place, trace.names[activities.name[place]]) for place in kernels)
        names = {place: name for place, name in named if tiles.multiplies(name)}
        main = max(names, key=spans.__getitem__, default=-1)
        name, kernel = trace.names[host.name[root]], names.get(main, "")
        number_format = traced_format(inner.types) if inner else None
        if number_format == "fp32" and any(map(tiles.rounds_to_tf32, names.values())):
            number_format = "tf32"
        number_format = number_format or tiles.format_of(kernel)
        again = bool(attribution.recomputed[root])
        key = (id(call) if call else name, id(recorded), number_format, again, kernel)
        if key not in by_key:
            shapes = str([shape for shape in call.shapes if shape]) if call and any(call.shapes) else ""
            about = {field: getattr(recorded, field) for field in ("reason", "matmul", "elements", "bytes_moved")}
            by_key[key] = Product(name, shapes, number_format, again, kernel=kernel, **about)
            if kernel:
                # A convolution's backward pass is two matmuls of as many FLOPs; of others the longest kernel tells.
                judged = list(names.values()) if recorded.convolution else [kernel]
                by_key[key].judge(judged, recorded, int(activities.blocks[main]), capability)
        of_call[root] = by_key[key]
        by_key[key].add(time, recorded.cost)
    timed = (product for product in by_key.values() if product.time_ns or not product.reason)
    ordered, uncounted = sorted(timed, key=lambda product: -product.time_ns), dict[str, tuple[int, Said]]()
    for product in ordered:
        if product.reason:
            before, reason = uncounted.get(product.name, (0, product.reason))
            uncounted[product.name] = before + product.time_ns, reason
    return ordered, uncounted | _unknown(trace, attribution, window, device), of_call


def _roots(
    trace: Trace, attribution: Attribution, window: Window, device: int | None
) -> Iterator[tuple[int, int, list[int]]]:
    """Products that the window calls: their index, ns of their kernels or on a CPU of their own, and these kernels."""
    host, activities, kernels = trace.host, trace.activities, dict[int, list[int]]()
    roots = np.flatnonzero((attribution.product == np.arange(len(host))) & window.called(host.begin))
    if not len(activities):
        times, around = host.end - host.begin, attribution.around[roots]
        own = times.copy()
        # A product of unknown FLOPs around another keeps the rest.
        np.subtract.at(own, around[around >= 0], times[roots[around >= 0]])
        yield from ((root, time, []) for root, time in zip(roots.tolist(), own[roots].tolist(), strict=True))
        return
    mine = (activities.kind == COMPUTE) & ((device is None) | (activities.device == device))
    owners, times = attribution.product_of_activity, activities.end - activities.begin
    for place in np.flatnonzero((owners >= 0) & mine).tolist():
        kernels.setdefault(int(owners[place]), []).append(place)
    for root in roots.tolist():
        # A checkpoint stops once all is there that is asked for: its last call runs no kernel.
        if root in kernels or (device is None and not attribution.recomputed[root]):
            launched = kernels.get(root, [])
            yield root, int(times[launched].sum()), launched


def _unknown(trace: Trace, attribution: Attribution, window: Window, device: int | None) -> dict[str, tuple[int, Said]]:
    """Operators without a formula whose kernels multiply by their names, and such kernels of no operator."""
    activities, host = trace.activities, trace.host
    inside = (activities.begin >= window.begin) & (activities.begin < window.end)
    multiplied = (activities.kind == COMPUTE) & trace.named(tiles.multiplies)[activities.name]
    unowned = (attribution.product_of_activity < 0) & ~attribution.by_optimizer
    on_device = (device is None) | (activities.device == device)
    unknown, owners = dict[str, tuple[int, Said]](), attribution.operator_of_activity
    for place in np.flatnonzero(inside & multiplied & unowned & on_device):
        name, reason = trace.names[activities.name[place]], Said("of_no_operator")
        if attribution.by_graph[place]:
            reason = Said("by_graph")
        elif owners[place] >= 0:
            name, reason = called(trace.names[host.name[owners[place]]]), Said("no_formula")
        time = int(activities.end[place] - activities.begin[place])
        unknown[name] = unknown.get(name, (0, reason))[0] + time, reason
    return unknown
