"""Operator of each launch, by the launch's place in time on its thread, else by the id they share. An operator goes by
its outermost name. A product (matmul, convolution or attention) is the outermost call with a formula."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mfulab.core.said import Said
from mfulab.flops.traced import Traced, is_traced_matmul, traced_cost
from mfulab.tracing.trace import UPDATE, Indices, Times, Trace, launch_of, places_of

COMPILED, FUSED = "## Call CompiledFxGraph", "compiled, fused operators"
BACKWARD = "autograd::engine::evaluate_function"
_ENGINE = ("autograd::", "torch::")
STORED = "aten::_nnz"  # asked of a sparse operand inside its product
SPARSE = Traced(None, reason=Said("sparse"))


@dataclass(frozen=True)
class Attribution:
    """Owners of every host call and activity: indices into `Trace.host`, -1 without an owner."""

    # Of each host call the outermost product that it is or lies in; of those of unknown FLOPs the innermost.
    product: Indices
    around: Indices  # of each product, the one of unknown FLOPs that it lies in
    outermost: Indices  # of each host call, the outermost operator that it is or lies in
    innermost: dict[int, int]  # of each product, the innermost call with a formula: its types are those multiplied
    costs: dict[int, Traced]  # of each call that multiplies and whose arguments are recorded
    backward: npt.NDArray[np.bool_]  # whether the host call runs in the backward pass
    recomputed: npt.NDArray[np.bool_]  # whether it is a checkpoint's second forward there
    of_activity: Indices  # the innermost host call that launched each activity
    by_graph: npt.NDArray[np.bool_]  # whether a graph launched the activity
    by_optimizer: npt.NDArray[np.bool_]  # whether an optimiser's update did, whose products no model needs
    product_of_activity: Indices  # the product that launched each activity
    operator_of_activity: Indices  # the outermost operator that launched each activity


def attribute(trace: Trace) -> Attribution:
    """Nests the host's calls by thread and time, and finds each activity's launch among them."""
    host, multiplies = trace.host, trace.named(is_traced_matmul)
    calls = {place: call for place, call in host.calls.items() if multiplies[host.name[place]]}
    of_equal = {id(call): traced_cost(call.name, call.shapes, call.values, call.types) for call in calls.values()}
    costs = {place: of_equal[id(call)] for place, call in calls.items()}
    order = np.lexsort((-host.end, host.begin, host.thread))
    order = order[~trace.of_module[order]]
    nested = _Nested(trace, order.tolist(), multiplies.tolist(), costs)
    own, around, outer, parent, node, update = (np.array(column, np.int64) for column in nested.columns)
    is_update = (update >= 0) & (node < 0)
    own[np.isin(own, list(nested.unbatched)) | is_update] = -1
    is_again = host.forward & trace.named(_is_operator)[host.name] & np.isin(node, list(nested.plain))
    of_activity, by_graph = _launched(trace, parent, order)
    owners = (np.append(of, -1)[of_activity] for of in (own, outer))
    about = node >= 0, is_again, of_activity, by_graph, np.append(is_update, False)[of_activity]
    return Attribution(own, around, outer, nested.innermost, costs, *about, *owners)


class _Nested:
    """Finds what each host call lies in: product, one around it, outermost operator, parent, autograd node, update."""

    def __init__(self, trace: Trace, order: list[int], multiplies: list[bool], costs: dict[int, Traced]) -> None:
        host, count = trace.host, len(trace.host)
        self.columns = [[-1] * count for _ in range(6)]
        product, _, outermost, parent, node, update = self.columns
        self.innermost: dict[int, int] = {}
        self.unbatched = set[int]()  # products recorded by torch.func.vmap as of one sample, around that of all
        # Nodes that also run something without gradients: what has some is recomputed, not a graph of gradients.
        self.plain = set[int]()
        begins = (lambda name, word=word: name.startswith(word) for word in (BACKWARD, UPDATE, STORED))
        operates, returns, updates, stores = (trace.named(test).tolist() for test in (_is_operator, *begins))
        ends, threads, names, forward = (column.tolist() for column in (host.end, host.thread, host.name, host.forward))
        stack, thread = list[int](), None
        for place in order:
            if threads[place] != thread:
                stack, thread = [], threads[place]
            while stack and ends[stack[-1]] < ends[place]:
                stack.pop()
            name = names[place]
            if stack:
                above = parent[place] = stack[-1]
                product[place], outermost[place] = product[above], outermost[above]
                node[place], update[place] = node[above], update[above]
            if operates[name] and outermost[place] < 0:
                outermost[place] = place
            if node[place] >= 0 and (returns[name] or (outermost[place] == place and not forward[place])):
                self.plain.add(node[place])
            if returns[name]:
                node[place] = place
            elif updates[name] or forward[place]:  # what has gradients is the closure's, which computes a step
                update[place] = place if updates[name] else -1
            if multiplies[name]:
                self._multiply(place, costs)
            elif stores[name] and product[place] >= 0:
                costs[product[place]] = SPARSE
            stack.append(place)

    def _multiply(self, place: int, costs: dict[int, Traced]) -> None:
        product, around, *_ = self.columns
        outer = product[place]
        whole, own = (costs[at].cost if at in costs else None for at in (outer, place))
        if whole is None:
            around[place], product[place] = outer, place
        elif own and own.flops >= 2 * whole.flops > 0:
            self.unbatched.add(outer)
            product[place] = place
        self.innermost[product[place]] = place


def _is_operator(name: str) -> bool:
    return ("::" in name and not name.startswith(_ENGINE)) or name.startswith(("triton_", COMPILED))


def _launched(trace: Trace, parent: Indices, order: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    activities, launches, host = trace.activities, trace.launches, trace.host
    launch = launch_of(trace)
    by_graph = np.append(trace.named(lambda name: "GraphLaunch" in name)[launches.name], False)[launch]
    around = open_at(host.begin, host.end, host.thread, parent, order, launches.begin, launches.thread)
    of_activity = np.append(around, -1)[launch]
    # A correlation that serves as an external id, as in older traces, names a launch and no operator.
    lonely = np.flatnonzero((of_activity < 0) & (activities.external != activities.correlation))
    of_activity[lonely] = places_of(activities.external[lonely], host.external)
    replayed = np.fromiter(trace.owned, np.int64)
    of_activity[replayed], by_graph[replayed] = list(trace.owned.values()), False
    return of_activity, by_graph


def open_at(
    begin: Times, end: Times, thread: Indices, parent: Indices, order: Indices, times: Times, on: Indices
) -> Indices:
    """The innermost call on the same thread that is open at each of `times`."""
    innermost = np.full(len(times), -1)
    for number in np.unique(on):
        mine, calls = np.flatnonzero(on == number), order[thread[order] == number]
        if not len(calls):
            continue
        places = np.searchsorted(begin[calls], times[mine], side="right") - 1
        inside = np.where(places >= 0, calls[places], -1)
        while (outside := (inside >= 0) & (end[inside] < times[mine])).any():
            inside[outside] = parent[inside[outside]]
        innermost[mine] = inside
    return innermost
