"""Operator of each launch, by the launch's place in time on its thread, else by the id they share.

An operator goes by its outermost name: batch_norm, and not what it is made of. A matmul, convolution or
attention (a product, for short) is the outermost call with a formula.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mfulab.flops.recorded import Recorded, is_recorded_matmul, recorded_cost
from mfulab.tracing.recording import Indices, Recording, Times, launch_of

COMPILED, FUSED = "## Call CompiledFxGraph", "compiled, fused operators"
BACKWARD = "autograd::engine::evaluate_function"
_ENGINE = ("autograd::", "torch::")


@dataclass(frozen=True)
class Attribution:
    """Owners of every host call and activity: indices into `Recording.host`, -1 without an owner.

    Attributes:
        product: of each host call, the outermost product that it is or lies in; of those whose record does not tell
            their FLOPs, the innermost.
        around: of each product, the one of unknown FLOPs that it lies in.
        costs: what the products cost, by the identity of their `Call`.
        outermost: of each host call, the outermost operator that it is or lies in.
        innermost: of each product, the innermost call with a formula inside it: its types are those multiplied.
        backward: whether the host call runs in the backward pass.
        recomputed: whether it runs there with gradients enabled: a checkpoint's second forward pass.
        of_activity: the innermost host call that launched each activity.
        by_graph: whether a graph launched the activity.
    """

    product: Indices
    around: Indices
    outermost: Indices
    innermost: dict[int, int]
    costs: dict[int, Recorded]
    backward: npt.NDArray[np.bool_]
    recomputed: npt.NDArray[np.bool_]
    of_activity: Indices
    by_graph: npt.NDArray[np.bool_]

    def product_of_activity(self) -> Indices:
        """The product that launched each activity; -1 where none did."""
        return self._launched(self.product)

    def operator_of_activity(self) -> Indices:
        """The outermost operator that launched each activity; -1 where none did."""
        return self._launched(self.outermost)

    def _launched(self, owner: Indices) -> Indices:
        return np.where(self.of_activity >= 0, owner[self.of_activity], -1) if len(owner) else self.of_activity


def attribute(recording: Recording) -> Attribution:
    """Nests the host's calls by thread and time, and finds each activity's launch among them."""
    host, count = recording.host, len(recording.host)
    is_product = recording.named(is_recorded_matmul)
    is_operator, is_backward = recording.named(_is_operator), recording.named(lambda name: name.startswith(BACKWARD))
    parent, product, outermost, surrounding = (np.full(count, -1, np.int64) for _ in range(4))
    backward, recomputed = np.zeros(count, bool), np.zeros(count, bool)
    innermost: dict[int, int] = {}
    costs: dict[int, Recorded] = {}

    def is_told(one: int) -> bool:
        call = host.calls.get(one)
        if call is None:
            return False
        if id(call) not in costs:
            costs[id(call)] = recorded_cost(call.name, call.shapes, call.values)
        return costs[id(call)].cost is not None

    order = np.lexsort((-host.end, host.begin, host.thread))
    stack: list[int] = []
    ends, threads, names = host.end.tolist(), host.thread.tolist(), host.name.tolist()
    forward = host.forward.tolist()
    multiplies, operates, returns = is_product.tolist(), is_operator.tolist(), is_backward.tolist()
    thread = None
    for one in order.tolist():
        if threads[one] != thread:
            stack, thread = [], threads[one]
        while stack and ends[stack[-1]] < ends[one]:
            stack.pop()
        name = names[one]
        if stack:
            above = stack[-1]
            parent[one] = above
            product[one], outermost[one], backward[one] = product[above], outermost[above], backward[above]
        if operates[name]:
            outermost[one] = one if outermost[one] < 0 else outermost[one]
            recomputed[one] = backward[one] and forward[one]
        backward[one] |= returns[name]
        if multiplies[name]:
            if product[one] < 0 or not is_told(int(product[one])):
                surrounding[one] = product[one]
                product[one] = one
                is_told(one)
            innermost[int(product[one])] = one
        stack.append(one)
    of_activity, by_graph = _launched(recording, parent, order)
    return Attribution(product, surrounding, outermost, innermost, costs, backward, recomputed, of_activity, by_graph)


def _is_operator(name: str) -> bool:
    return ("::" in name and not name.startswith(_ENGINE)) or name.startswith(("triton_", COMPILED))


def _launched(recording: Recording, parent: Indices, order: Indices) -> tuple[Indices, npt.NDArray[np.bool_]]:
    activities, launches, host = recording.activities, recording.launches, recording.host
    found = launch_of(recording)
    graph = recording.named(lambda name: "GraphLaunch" in name)[launches.name]
    by_graph = (found >= 0) & graph[found] if len(graph) else np.zeros(len(activities), bool)
    around = open_at(host.begin, host.end, host.thread, parent, order, launches.begin, launches.thread)
    of_activity = np.where(found >= 0, around[found], -1) if len(around) else np.full(len(activities), -1)
    # A correlation that serves as an external id, as in older traces, names a launch and no operator.
    lonely = np.flatnonzero((of_activity < 0) & (activities.external != activities.correlation))
    if len(lonely) and len(host):
        by_id = np.argsort(host.external, kind="stable")
        places = np.searchsorted(host.external[by_id], activities.external[lonely]).clip(max=len(by_id) - 1)
        named = by_id[places]
        matches = (host.external[named] == activities.external[lonely]) & (activities.external[lonely] > 0)
        of_activity[lonely] = np.where(matches, named, -1)
    if recording.owned:
        replayed = list(recording.owned)
        of_activity[replayed], by_graph[replayed] = list(recording.owned.values()), False
    return of_activity, by_graph


def open_at(
    begin: Times, end: Times, thread: Indices, parent: Indices, order: Indices, times: Times, on: Indices
) -> Indices:
    """The innermost call on the same thread that is open at each of `times`."""
    found = np.full(len(times), -1)
    for number in np.unique(on):
        mine, calls = np.flatnonzero(on == number), order[thread[order] == number]
        if not len(calls):
            continue
        places = np.searchsorted(begin[calls], times[mine], side="right") - 1
        inside = np.where(places >= 0, calls[places], -1)
        while (outside := (inside >= 0) & (end[inside] < times[mine])).any():
            inside[outside] = parent[inside[outside]]
        found[mine] = inside
    return found
