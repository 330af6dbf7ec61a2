"""Operator of each launch, by the launch's place in time on its thread, else by the id they share. An operator goes by
its outermost name. A product (matmul, convolution or attention) is the outermost call with a formula."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mfulab.flops.traced import Traced, is_traced_matmul, traced_cost
from mfulab.tracing.trace import Indices, Times, Trace, launch_of, places_of

COMPILED, FUSED = "## Call CompiledFxGraph", "compiled, fused operators"
BACKWARD = "autograd::engine::evaluate_function"
_ENGINE = ("autograd::", "torch::")


@dataclass(frozen=True)
class Attribution:
    """Owners of every host call and activity: indices into `Trace.host`, -1 without an owner."""

    # Of each host call the outermost product that it is or lies in; of those of unknown FLOPs the innermost.
    product: Indices
    around: Indices  # of each product, the one of unknown FLOPs that it lies in
    outermost: Indices  # of each host call, the outermost operator that it is or lies in
    innermost: dict[int, int]  # of each product, the innermost call with a formula: its types are those multiplied
    costs: dict[int, Traced]  # what the products cost, by the identity of their `Call`
    backward: npt.NDArray[np.bool_]  # whether the host call runs in the backward pass
    recomputed: npt.NDArray[np.bool_]  # whether it runs there with gradients enabled: a checkpoint's second forward
    of_activity: Indices  # the innermost host call that launched each activity
    by_graph: npt.NDArray[np.bool_]  # whether a graph launched the activity
    product_of_activity: Indices  # the product that launched each activity
    operator_of_activity: Indices  # the outermost operator that launched each activity


def attribute(trace: Trace) -> Attribution:
    """Nests the host's calls by thread and time, and finds each activity's launch among them."""
    host, count = trace.host, len(trace.host)
    multiplies, operates, returns = (
        trace.named(test).tolist() for test in (is_traced_matmul, _is_operator, lambda name: name.startswith(BACKWARD))
    )
    parent, product, outermost, surrounding = ([-1] * count for _ in range(4))
    backward, recomputed = [False] * count, [False] * count
    innermost: dict[int, int] = {}
    calls = {id(call): call for place, call in host.calls.items() if multiplies[host.name[place]]}
    costs = {key: traced_cost(call.name, call.shapes, call.values) for key, call in calls.items()}
    told = {key for key, recorded in costs.items() if recorded.cost is not None}
    order = np.lexsort((-host.end, host.begin, host.thread))
    order = order[~trace.of_module[order]]
    stack: list[int] = []
    ends, threads, names, forward = (column.tolist() for column in (host.end, host.thread, host.name, host.forward))
    thread = None
    for place in order.tolist():
        if threads[place] != thread:
            stack, thread = [], threads[place]
        while stack and ends[stack[-1]] < ends[place]:
            stack.pop()
        name = names[place]
        if stack:
            above = stack[-1]
            parent[place] = above
            product[place], outermost[place], backward[place] = product[above], outermost[above], backward[above]
        if operates[name]:
            outermost[place] = place if outermost[place] < 0 else outermost[place]
            recomputed[place] = backward[place] and forward[place]
        backward[place] |= returns[name]
        if multiplies[name]:
            if product[place] < 0 or id(host.calls.get(product[place])) not in told:
                surrounding[place], product[place] = product[place], place
            innermost[product[place]] = place
        stack.append(place)
    of_activity, by_graph = _launched(trace, np.array(parent, np.int64), order)
    own, around, outer = (np.array(column, np.int64) for column in (product, surrounding, outermost))
    owners = (np.append(of, -1)[of_activity] for of in (own, outer))
    passes = np.array(backward, bool), np.array(recomputed, bool)
    return Attribution(own, around, outer, innermost, costs, *passes, of_activity, by_graph, *owners)


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
