"""Operator of each launch, by the launch's place in time on its thread, else by the id they share.
An operator goes by its outermost name. A product (matmul, convolution or attention) is the
outermost call with a formula."""

from dataclasses import dataclass

import numpy as np

from mfulab.core.said import Said
from mfulab.flops.registry.step import StepWork, step_work
from mfulab.flops.traced import Traced, asks_step, is_traced_matmul, traced_cost
from mfulab.tracing.trace import (
    UPDATE,
    Call,
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
STORED = "aten::_nnz"  # asked of a sparse operand inside its product
SPARSE = Traced(None, reason=Said("sparse"))


@dataclass(frozen=True)
class Attribution:
    """Owners of every host call and activity: indices into `Trace.host`, -1 without an owner."""

    # Of each host call the outermost product that it is or lies in; of those of unknown FLOPs the
    # innermost.
    product: Indices
    around: Indices  # of each product, the one of unknown FLOPs that it lies in
    outermost: Indices  # of each host call, the outermost operator that it is or lies in
    innermost: dict[
        int, int
    ]  # of each product, the innermost call with a formula: its types are those multiplied
    costs: dict[int, Traced]  # of each call that multiplies and whose arguments are recorded
    backward: Chosen  # whether the host call runs in the backward pass
    recomputed: Chosen  # whether it is a checkpoint's second forward there
    of_activity: Indices  # the innermost host call that launched each activity
    by_graph: Chosen  # whether a graph launched the activity
    by_optimizer: Chosen  # whether an optimiser's update did, whose products no model needs
    product_of_activity: Indices  # the product that launched each activity
    operator_of_activity: Indices  # the outermost operator that launched each activity


def attribute(trace: Trace) -> Attribution:
    """Nests the host's calls by thread and time, and finds each activity's launch among them."""
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
    is_update = (np.array(nested.update, np.int64) >= 0) & (node < 0)
    product[np.isin(product, list(nested.unbatched)) | is_update] = -1
    is_again = (
        host.forward & trace.named(_is_operator)[host.name] & np.isin(node, list(nested.plain))
    )
    parent = np.array(nested.parent, np.int64)
    of_activity, by_graph = _launched(trace, parent, order)
    return Attribution(
        product=product,
        around=np.array(nested.around, np.int64),
        outermost=outermost,
        innermost=nested.innermost,
        costs=costs,
        backward=node >= 0,
        recomputed=is_again,
        of_activity=of_activity,
        by_graph=by_graph,
        by_optimizer=np.append(is_update, False)[of_activity],
        product_of_activity=np.append(product, -1)[of_activity],
        operator_of_activity=np.append(outermost, -1)[of_activity],
    )


def _costs(trace: Trace, calls: dict[int, Call]) -> dict[int, Traced]:
    """Costs of calls; equal ones share theirs, unless the engine's step decides."""
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
    """Ranges in which an engine tells the lengths of its requests."""

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
        """The step that is under way at a time; None without one."""
        index = int(np.searchsorted(self._begin, time, side="right")) - 1
        if index < 0 or self._end[index] < time:
            return None
        return self._work[index]


class _Nested:
    """Finds what each host call lies in: product, one around it, outermost operator, parent,
    autograd node, update."""

    def __init__(
        self, trace: Trace, order: list[int], multiplies: list[bool], costs: dict[int, Traced]
    ) -> None:
        host = trace.host
        count = len(host)
        # Of each host call, as `Attribution` has them; autograd's node and the optimiser's update.
        self.product = [-1] * count
        self.around = [-1] * count
        self.outermost = [-1] * count
        self.parent = [-1] * count
        self.node = [-1] * count
        self.update = [-1] * count
        self.innermost: dict[int, int] = {}
        # Products that torch.func.vmap recorded as of one sample, around that of all.
        self.unbatched = set[int]()
        # Nodes that also run something without gradients: what has some is recomputed, not a graph
        # of gradients.
        self.plain = set[int]()
        self._names = host.name.tolist()
        self._forward = host.forward.tolist()
        self._multiplies = multiplies
        self._operates = trace.named(_is_operator).tolist()
        self._returns = trace.named(lambda name: name.startswith(BACKWARD)).tolist()
        self._updates = trace.named(lambda name: name.startswith(UPDATE)).tolist()
        self._stores = trace.named(lambda name: name.startswith(STORED)).tolist()
        self._costs = costs
        self._walk(order, host.thread.tolist(), host.end.tolist())

    def _walk(self, order: list[int], threads: list[int], ends: list[int]) -> None:
        """Goes through calls in the order of their begin, thread by thread."""
        product, outermost, parent = self.product, self.outermost, self.parent
        node, update, names = self.node, self.update, self._names
        kinds = (self._multiplies, self._returns, self._updates, self._stores)
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
                above = parent[index] = stack[-1]
                product[index] = product[above]
                outermost[index] = outermost[above]
                node[index] = node[above]
                update[index] = update[above]
            # What is nothing of its own, inside an operator, is what its parent is.
            if is_special[names[index]] or outermost[index] < 0 or update[index] >= 0:
                self._place(index)
            stack.append(index)

    def _place(self, index: int) -> None:
        """Notes what a call is of its own."""
        name = self._names[index]
        if self._operates[name] and self.outermost[index] < 0:
            self.outermost[index] = index
        self._place_in_node(index)
        if self._multiplies[name]:
            self._multiply(index)
        elif self._stores[name] and self.product[index] >= 0:
            self._costs[self.product[index]] = SPARSE

    def _place_in_node(self, index: int) -> None:
        """Notes what a call is to autograd, and to the optimiser."""
        name = self._names[index]
        returns = self._returns[name]
        has_gradients = self._forward[index]
        is_plain = self.outermost[index] == index and not has_gradients
        if self.node[index] >= 0 and (returns or is_plain):
            self.plain.add(self.node[index])
        if returns:
            self.node[index] = index
        elif self._updates[name]:
            self.update[index] = index
        elif has_gradients:  # what has gradients is the closure's, which computes a step
            self.update[index] = -1

    def _multiply(self, index: int) -> None:
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
    return ("::" in name and not name.startswith(_ENGINE)) or name.startswith(("triton_", COMPILED))


def _launched(trace: Trace, parent: Indices, order: Indices) -> tuple[Indices, Chosen]:
    activities = trace.activities
    launches = trace.launches
    host = trace.host
    launch = launch_of(trace)
    by_graph = np.append(trace.named(lambda name: "GraphLaunch" in name)[launches.name], False)[
        launch
    ]
    open_calls = Open(host.begin, host.end, host.thread, parent, order)
    around = open_calls.at(launches.begin, launches.thread)
    of_activity = np.append(around, -1)[launch]
    # A correlation that serves as an external id, as in older traces, names a launch and no
    # operator.
    lonely = np.flatnonzero((of_activity < 0) & (activities.external != activities.correlation))
    of_activity[lonely] = places_of(activities.external[lonely], host.external)
    replayed = np.fromiter(trace.owned, np.int64)
    of_activity[replayed], by_graph[replayed] = list(trace.owned.values()), False
    return of_activity, by_graph


class Open:
    """Calls by thread, `order` being that of their begin: finds which are open at a time."""

    def __init__(
        self, begin: Times, end: Times, thread: Indices, parent: Indices, order: Indices
    ) -> None:
        self._begin = begin
        self._end = end
        self._parent = parent
        self._of_thread = {number: order[mine] for number, mine in grouped(thread[order])}

    def at(self, times: Times, threads: Indices) -> Indices:
        """The innermost call on the same thread that is open at each of `times`; -1 without one."""
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
