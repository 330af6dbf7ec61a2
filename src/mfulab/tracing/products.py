"""Matrix products, convolutions and attention of a window: calls, time, FLOPs, tiles; and those of unknown FLOPs."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from mfulab.flops.operators import Cost
from mfulab.flops.recorded import Recorded, recorded_format
from mfulab.tracing.attribution import Attribution
from mfulab.tracing.recording import COMPUTE, Recording
from mfulab.tracing.shares import called
from mfulab.tracing.tiles import multiplies, padding, rounds_to_tf32, tile_of
from mfulab.tracing.window import Window


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


def products_of(
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
            name, reason = called(recording.names[host.name[owners[one]]]), "no formula for this operator"
        time = int(activities.end[one] - activities.begin[one])
        found[name] = (found.get(name, (0, ""))[0] + time, reason)
    return found
