"""Finds the operator of each launch: by the launch's time on its thread, else by the id they share.
An operator goes by its outermost name. A product (matmul, convolution or attention) is the
outermost call with a FLOP formula."""

from dataclasses import dataclass

import numpy as np

from mfulab.core.said import Said
from mfulab.flops.registry.step import StepWork, step_work
from mfulab.flops.traced import Traced, asks_step, is_traced_matmul, traced_cost
from mfulab.tracing.trace import (
    UPDATE,
    CallArguments,
    Chosen,
    Indices,
    Times,
    Trace,
    grouped,
    launch_of,
    places_of,
)

COMPILED, FUSED = "## Call CompiledFxGraph", "compiled, fused operators"
BACKWARD = "autograd::engine::evaluate_function"
_ENGINE = ("autograd::", "torch::")
_SPARSE_CALL = "aten::_nnz"  # called on a sparse operand inside its product
SPARSE = Traced(None, reason=Said("sparse"))


@dataclass(frozen=True)
class Attribution:
    """Owners of every host call and activity: indices into `Trace.host`, -1 without an owner."""

    # Per host call: the outermost product that it is or lies in. A product of unknown FLOPs gives
    # way to one inside it.
    product: Indices
    around: Indices  # per product: the product of unknown FLOPs that it lies in
    outermost: Indices  # per host call: the outermost operator that it is or lies in
    # Per product: the innermost call with a formula, whose types are those multiplied.
    innermost: dict[int, int]
    costs: dict[int, Traced]  # per call with a formula and recorded arguments
    backward: Chosen  # True for a host call in the backward pass
    recomputed: Chosen  # True for a checkpoint's second forward in it
    of_activity: Indices  # per activity: the innermost host call that launched it
    by_graph: Chosen  # True for an activity that a graph launched
    by_optimizer: Chosen  # True if an optimiser's update did, whose products no model needs
    product_of_activity: Indices  # per activity: the product that launched it
    operator_of_activity: Indices  # per activity: the outermost operator that launched it


def attribute(trace: Trace) -> Attribution:
    """Finds the operator and the product of every host call and activity: nests host calls by
    thread and time, then places each launch among them."""
    host = trace.host
    multiplies = trace.named(is_traced_matmul)
    calls = {index: call for index, call in host.calls.items() if multiplies[host.name[index]]}
    costs = _costs(trace, calls)
    order = np.lexsort((-host.end, host.begin, host.thread))
    order = order[~trace.of_module[order]]
    nested = _Nested(trace, order.tolist(), multiplies.tolist(), costs)
    product = np.array(nested.product, np.int64)
    outermost = np.array(nested.outermost, np.int64)
    node = np.array(nested.node, np.int64)
    update = np.array(nested.update, np.int64)
    is_update = (update >= 0) & (node < 0)
    is_unbatched = np.isin(product, list(nested.unbatched))
    product[is_unbatched | is_update] = -1
    is_operator = trace.named(_is_operator)[host.name]
    recomputes = np.isin(node, list(nested.recomputing))
    is_recomputed = host.forward & is_operator & recomputes
    parent = np.array(nested.parent, np.int64)
    of_activity, by_graph = _launched(trace, parent, order)
    return Attribution(
        product=product,
        around=np.array(nested.around, np.int64),
        outermost=outermost,
        innermost=nested.innermost,
        costs=costs,
        backward=node >= 0,
        recomputed=is_recomputed,
        of_activity=of_activity,
        by_graph=by_graph,
        by_optimizer=np.append(is_update, False)[of_activity],
        product_of_activity=np.append(product, -1)[of_activity],
        operator_of_activity=np.append(outermost, -1)[of_activity],
    )


def _costs(trace: Trace, calls: CallArguments) -> dict[int, Traced]:
    """Cost of each call, by index. Equal calls share one, unless the engine's step decides."""
    steps = _Steps(trace)
    costs = dict[int, Traced]()
    shared = dict[tuple[int, StepWork | None], Traced]()
    for index, call in calls.items():
        step = None
        if asks_step(call.name):
            step = steps.around(int(trace.host.begin[index]))
        key = id(call), step
        if key not in shared:
            shared[key] = traced_cost(call.name, call.shapes, call.values, call.types, step)
        costs[index] = shared[key]
    return costs


class _Steps:
    """Annotations in which an engine records the lengths of its requests."""

    def __init__(self, trace: Trace) -> None:
        host = trace.host
        works = list(map(step_work, trace.names))
        known = np.array([work is not None for work in works], bool)
        places = np.flatnonzero(host.annotation & known[host.name])
        places = places[np.argsort(host.begin[places], kind="stable")]
        self._begin = host.begin[places]
        self._end = host.end[places]
        self._work = [works[name] for name in host.name[places].tolist()]

    def around(self, time: int) -> StepWork | None:
        """Engine step under way at a time (ns); None if there is none."""
        index = int(np.searchsorted(self._begin, time, side="right")) - 1
        if index < 0 or self._end[index] < time:
            return None
        return self._work[index]


class _Nested:
    """Nests host calls: finds each call's parent, product, outermost operator, autograd node and
    optimiser update."""

    def __init__(
        self, trace: Trace, order: list[int], multiplies: list[bool], costs: dict[int, Traced]
    ) -> None:
        host = trace.host
        count = len(host)
        # Per host call, as in `Attribution`; also its autograd node and optimiser update.
        self.product = [-1] * count
        self.around = [-1] * count
        self.outermost = [-1] * count
        self.parent = [-1] * count
        self.node = [-1] * count
        self.update = [-1] * count
        self.innermost: dict[int, int] = {}
        # Products of one sample that torch.func.vmap recorded around that of all samples.
        self.unbatched = set[int]()
        # Autograd nodes that also run operators without gradients: operators with gradients in them
        # are a checkpoint's recomputation, not a double backward.
        self.recomputing = set[int]()
        self._names = host.name.tolist()
        self._forward = host.forward.tolist()
        self._multiplies = multiplies
        self._operates = trace.named(_is_operator).tolist()
        self._backward = trace.named(lambda name: name.startswith(BACKWARD)).tolist()
        self._updates = trace.named(lambda name: name.startswith(UPDATE)).tolist()
        self._sparse = trace.named(lambda name: name.startswith(_SPARSE_CALL)).tolist()
        self._costs = costs
        self._walk(order, host.thread.tolist(), host.end.tolist())

    def _walk(self, order: list[int], threads: list[int], ends: list[int]) -> None:
        """Visits the calls thread by thread, in order of begin."""
        product = self.product
        outermost = self.outermost
        parent = self.parent
        node = self.node
        update = self.update
        names = self._names
        kinds = (self._multiplies, self._backward, self._updates, self._sparse)
        is_special = list(map(any, zip(*kinds, strict=True)))
        stack = list[int]()
        thread = None
        for index in order:
            if threads[index] != thread:
                stack = []
                thread = threads[index]
            while stack and ends[stack[-1]] < ends[index]:
                stack.pop()
            if stack:
                above = stack[-1]
                parent[index] = above
                product[index] = product[above]
                outermost[index] = outermost[above]
                node[index] = node[above]
                update[index] = update[above]
            # A plain call inside an operator inherits everything from its parent.
            if is_special[names[index]] or outermost[index] < 0 or update[index] >= 0:
                self._classify(index)
            stack.append(index)

    def _classify(self, index: int) -> None:
        """Records what a call is by itself: operator, product, autograd node or update."""
        name = self._names[index]
        if self._operates[name] and self.outermost[index] < 0:
            self.outermost[index] = index
        self._classify_for_autograd(index)
        if self._multiplies[name]:
            self._multiply(index)
        elif self._sparse[name] and self.product[index] >= 0:
            self._costs[self.product[index]] = SPARSE

    def _classify_for_autograd(self, index: int) -> None:
        """Records what a call is to autograd and to the optimiser."""
        name = self._names[index]
        is_backward = self._backward[name]
        has_gradients = self._forward[index]
        is_plain = self.outermost[index] == index and not has_gradients
        if self.node[index] >= 0 and (is_backward or is_plain):
            self.recomputing.add(self.node[index])
        if is_backward:
            self.node[index] = index
        elif self._updates[name]:
            self.update[index] = index
        elif has_gradients:  # belongs to the optimiser's closure, which computes a step
            self.update[index] = -1

    def _multiply(self, index: int) -> None:
        """Decides whether a call with a formula is a product, or part of the product around it."""
        costs = self._costs
        outer = self.product[index]
        outer_cost = None
        if outer in costs:
            outer_cost = costs[outer].cost
        own_cost = None
        if index in costs:
            own_cost = costs[index].cost
        if outer_cost is None:
            self.around[index] = outer
            self.product[index] = index
        elif own_cost and own_cost.flops >= 2 * outer_cost.flops > 0:
            self.unbatched.add(outer)
            self.product[index] = index
        self.innermost[self.product[index]] = index


def _is_operator(name: str) -> bool:
    if name.startswith(("triton_", COMPILED)):
        return True
    return "::" in name and not name.startswith(_ENGINE)


def _launched(trace: Trace, parent: Indices, order: Indices) -> tuple[Indices, Chosen]:
    """Innermost host call that launched each activity (-1 if unknown), and whether a graph launched
    it."""
    activities = trace.activities
    launches = trace.launches
    host = trace.host
    launch = launch_of(trace)
    is_graph = trace.named(lambda name: "GraphLaunch" in name)[launches.name]
    by_graph = np.append(is_graph, False)[launch]
    open_calls = OpenCalls(host.begin, host.end, host.thread, parent, order)
    around = open_calls.at(launches.begin, launches.thread)
    of_activity = np.append(around, -1)[launch]
    # An external id equal to the correlation, as in older traces, names a launch and no operator.
    names_operator = activities.external != activities.correlation
    unowned = np.flatnonzero((of_activity < 0) & names_operator)
    of_activity[unowned] = places_of(activities.external[unowned], host.external)
    replayed = np.fromiter(trace.owned, np.int64)
    of_activity[replayed] = list(trace.owned.values())
    by_graph[replayed] = False
    return of_activity, by_graph


class OpenCalls:
    """Finds the calls open at a time on each thread. `order` holds the calls' indices by begin."""

    def __init__(
        self, begin: Times, end: Times, thread: Indices, parent: Indices, order: Indices
    ) -> None:
        self._begin = begin
        self._end = end
        self._parent = parent
        self._of_thread = {number: order[mine] for number, mine in grouped(thread[order])}

    def at(self, times: Times, threads: Indices) -> Indices:
        """Index of the innermost call open on the same thread at each of `times` (ns); -1 if there
        is none."""
        innermost = np.full(len(times), -1)
        for number, mine in grouped(threads):
            calls = self._of_thread.get(number)
            if calls is None:
                continue
            places = np.searchsorted(self._begin[calls], times[mine], side="right") - 1
            inside = np.where(places >= 0, calls[places], -1)
            while (outside := (inside >= 0) & (self._end[inside] < times[mine])).any():
                inside[outside] = self._parent[inside[outside]]
            innermost[mine] = inside
        return innermost
