"""Lists the matmuls, convolutions and attention of a window, with calls, time, FLOPs and tiles, and
products of unknown FLOPs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mfulab.core.formats import ELEMENT_BYTES
from mfulab.core.parts import drop_none
from mfulab.core.said import Said
from mfulab.flops.cost import Matmul
from mfulab.flops.traced import NO_SHAPES, Traced, traced_format
from mfulab.tracing import tiles
from mfulab.tracing.intervals import length
from mfulab.tracing.of_window import OfWindow
from mfulab.tracing.shares import operator_name
from mfulab.tracing.trace import COMPUTE, Call

_UNRECORDED = Traced(None, reason=NO_SHAPES)
Uncounted = dict[str, tuple[int, Said]]  # name of a product of unknown FLOPs → ns and the reason


@dataclass
class Product:
    """Calls of one product with the same shapes and number format."""

    name: str
    shapes: str
    format: str | None
    recomputed: bool
    calls: int = 0
    time_ns: int = 0  # of its kernels; on a CPU, of its calls
    shortest_ns: int | None = None  # of its fastest call
    elements: int | None = None  # read and written by one call; None if unknown
    bytes_moved: float | None = None  # by one call, if the record has them; else see `elements`
    flops: int = 0
    causal_flops: int = 0
    executed_flops: int = 0
    matmul: Matmul | None = None
    tile: tuple[int, ...] | None = None
    # operations that its kernel executes ÷ counted FLOPs; None if unknown
    executed_ratio: float | None = None
    slowdown: float = 1.0  # cycles of its instructions ÷ those of the GPU's newest
    kernel: str = ""
    reason: Said | None = None

    def add(self, time_ns: int, recorded: Traced) -> None:
        """Adds one call. `bytes_moved` becomes the mean of all calls."""
        cost = recorded.cost
        self.calls += 1
        self.time_ns += time_ns
        if time_ns:
            self.shortest_ns = min(time_ns, self.shortest_ns or time_ns)
        if cost:
            self.flops += cost.flops
            self.causal_flops += cost.causal_flops
            self.executed_flops += cost.executed_flops
        if recorded.bytes_moved is not None and self.bytes_moved is not None:
            self.bytes_moved += (recorded.bytes_moved - self.bytes_moved) / self.calls

    @property
    def misaligned_side(self) -> int | None:
        """Longest side of a matmul that is no multiple of 16 bytes, if its kernel uses shorter
        loads for that; else None."""
        step = 16 // ELEMENT_BYTES.get(self.format or "", 4)
        if not self.matmul or tiles.alignment_of(self.kernel) % step == 0:
            return None
        return max((side for side in self.matmul[1:] if side % step), default=None)

    def judge(
        self, kernels: list[str], recorded: Traced, blocks: int, capability: tuple[int, int]
    ) -> None:
        """Sets the tile, and the executed ratio and slowdown as means over the kernels, which share
        the FLOPs equally."""
        ratios = [tiles.executed_ratio(kernel, recorded, blocks) for kernel in kernels]
        if known := drop_none(ratios):
            self.executed_ratio = sum(known) / len(known)
        slowdowns = [tiles.slowdown_of(kernel, self.format, capability) for kernel in kernels]
        self.slowdown = sum(slowdowns) / len(slowdowns)
        self.tile = tiles.tile_of(self.kernel)

    @property
    def call_bytes(self) -> float | None:
        """Bytes of one call, each operand and result counted once; None if its record lacks
        them."""
        if self.bytes_moved is not None:
            return self.bytes_moved
        if self.elements is None or self.format not in ELEMENT_BYTES:
            return None
        return self.elements * ELEMENT_BYTES[self.format]


@dataclass(frozen=True)
class Products:
    """All products of a window."""

    listed: list[Product]  # by operator, shapes and format, longest first
    uncounted: Uncounted
    of_call: dict[int, Product]  # by index of the host call


@dataclass(frozen=True)
class _Run:
    """One call of a product in the window, with its kernels."""

    root: int  # index of the host's call
    time_ns: int  # of its kernels; on a CPU, of the call without products inside it
    kernels: list[int]  # indices of activities


def products_of(facts: OfWindow, device: int | None = None) -> Products:
    """Groups the product calls of a window, on one device or, if None, on all. Also collects
    products of unknown FLOPs and the product of each call."""
    by_key = dict[_Key, Product]()
    of_call = dict[int, Product]()
    maker = _Maker(facts, device)
    costs = facts.attribution.costs
    for run in _runs(facts, device):
        key = maker.key(run)
        if key not in by_key:
            by_key[key] = maker.product(run, key)
        by_key[key].add(run.time_ns, costs.get(run.root, _UNRECORDED))
        of_call[run.root] = by_key[key]
    timed = (product for product in by_key.values() if product.time_ns or not product.reason)
    ordered = sorted(timed, key=lambda product: -product.time_ns)
    uncounted = Uncounted()
    for product in ordered:
        if product.reason:
            before, reason = uncounted.get(product.name, (0, product.reason))
            uncounted[product.name] = before + product.time_ns, reason
    return Products(ordered, uncounted | _unknown(facts, device), of_call)


@dataclass(frozen=True)
class _Key:
    """Key under which calls of one product are grouped."""

    arguments: int  # id() of the recorded arguments, which equal calls share, else the name's index
    # id() of the recorded cost; if the engine's step decides it, whether it is known
    cost: int | bool
    format: str | None
    recomputed: bool
    kernel: str


class _Maker:
    """Makes the product of a call: its name, shapes, number format and main kernel."""

    def __init__(self, facts: OfWindow, device: int | None) -> None:
        self._trace = facts.trace
        self._attribution = facts.attribution
        properties = facts.trace.device_properties(device)
        self._capability = properties.get("computeMajor", 0), properties.get("computeMinor", 0)

    def key(self, run: _Run) -> _Key:
        """Key of a call's product."""
        host = self._trace.host
        call = host.calls.get(run.root)
        recorded = self._attribution.costs.get(run.root, _UNRECORDED)
        names = self._multiplying(run.kernels)
        kernel = names.get(self._longest(names), "")
        arguments = int(host.name[run.root])
        if call:
            arguments = id(call)
        cost: int | bool = id(recorded)
        if recorded.of_step:
            cost = recorded.cost is not None
        return _Key(
            arguments=arguments,
            cost=cost,
            format=self._format(run.root, recorded, names, kernel),
            recomputed=bool(self._attribution.recomputed[run.root]),
            kernel=kernel,
        )

    def product(self, run: _Run, key: _Key) -> Product:
        """Makes the product of a key, without any calls."""
        host = self._trace.host
        recorded = self._attribution.costs.get(run.root, _UNRECORDED)
        product = Product(
            name=self._trace.names[host.name[run.root]],
            shapes=_shapes_of(host.calls.get(run.root)),
            format=key.format,
            recomputed=key.recomputed,
            kernel=key.kernel,
            reason=recorded.reason,
            matmul=recorded.matmul,
            elements=recorded.elements,
            bytes_moved=recorded.bytes_moved,
        )
        if key.kernel:
            names = self._multiplying(run.kernels)
            judged = [key.kernel]
            # A convolution's backward pass is two matmuls of equal FLOPs.
            if recorded.convolution:
                judged = list(names.values())
            blocks = int(self._trace.activities.blocks[self._longest(names)])
            product.judge(judged, recorded, blocks, self._capability)
        return product

    def _longest(self, names: dict[int, str]) -> int:
        return max(names, key=self._length, default=-1)

    def _length(self, index: int) -> int:
        """Duration of an activity in ns."""
        activities = self._trace.activities
        return int(activities.end[index] - activities.begin[index])

    def _multiplying(self, kernels: list[int]) -> dict[int, str]:
        """Names of those kernels that multiply, by activity index."""
        names = dict[int, str]()
        for index in kernels:
            name = self._trace.names[self._trace.activities.name[index]]
            if tiles.multiplies(name):
                names[index] = name
        return names

    def _format(
        self, root: int, recorded: Traced, names: dict[int, str], kernel: str
    ) -> str | None:
        """Number format that a call multiplies: that of its formula, operands or kernel; None if
        unknown."""
        calls = self._trace.host.calls
        inner = calls.get(self._attribution.innermost[root], calls.get(root))
        number_format = recorded.format
        if number_format is None and inner:
            number_format = traced_format(inner.types)
        if number_format == "fp32" and any(map(tiles.rounds_to_tf32, names.values())):
            return "tf32"
        return number_format or tiles.format_of(kernel)


def _shapes_of(call: Call | None) -> str:
    if call is None or not any(call.shapes):
        return ""
    return str(list(filter(None, call.shapes)))


def _runs(facts: OfWindow, device: int | None) -> Iterator[_Run]:
    """Yields the product calls of the window with the kernels that they ran on a device."""
    activities = facts.trace.activities
    if not len(activities):
        yield from _host_runs(facts)
        return
    kernels = facts.kernels_of_products(device)
    recomputed = facts.attribution.recomputed
    # A checkpoint stops once it has all that the backward pass needs: its last call runs no kernel.
    roots = sorted(kernels)
    if device is None:
        called = facts.roots.tolist()
        roots = []
        for root in called:
            if root in kernels or not recomputed[root]:
                roots.append(root)
    for root in roots:
        launched = kernels.get(root, [])
        yield _Run(root, length(activities.where(launched)), launched)


def _host_runs(facts: OfWindow) -> Iterator[_Run]:
    """Yields the product calls of a trace without devices, with their own time on the host."""
    host = facts.trace.host
    roots = facts.roots
    times = host.lengths
    around = facts.attribution.around[roots]
    own = times.copy()
    # A product of unknown FLOPs keeps its time without the products inside it.
    np.subtract.at(own, around[around >= 0], times[roots[around >= 0]])
    for root in roots.tolist():
        yield _Run(root, int(own[root]), [])


def _unknown(facts: OfWindow, device: int | None) -> Uncounted:
    """Sums the time of matmul kernels, recognised by name, whose operator has no formula or is
    unknown."""
    trace = facts.trace
    activities = trace.activities
    attribution = facts.attribution
    places = facts.executed(device)
    begin = activities.begin[places]
    inside = (begin >= facts.window.begin) & (begin < facts.window.end)
    multiplied = (activities.kind[places] == COMPUTE) & facts.multiplies[activities.name[places]]
    is_unowned = attribution.product_of_activity[places] < 0
    unowned = is_unowned & ~attribution.by_optimizer[places]
    unknown = Uncounted()
    owners = attribution.operator_of_activity
    for index in places[inside & multiplied & unowned].tolist():
        name = trace.names[activities.name[index]]
        reason = Said("of_no_operator")
        if attribution.by_graph[index]:
            reason = Said("by_graph")
        elif owners[index] >= 0:
            name = operator_name(trace.names[trace.host.name[owners[index]]])
            reason = Said("no_formula")
        time = int(activities.end[index] - activities.begin[index])
        unknown[name] = unknown.get(name, (0, reason))[0] + time, reason
    return unknown
