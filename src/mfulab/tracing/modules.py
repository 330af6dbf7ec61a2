"""Splits a step's time and FLOPs by the model's modules and by marked ranges. torch.profiler
records modules as `nn.Module: NAME_NUMBER`; ranges are those of `record_function` and NVTX.
Backward work belongs to the module of the forward operator with the same sequence number."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mfulab.tracing.attribution import BACKWARD, OpenCalls
from mfulab.tracing.intervals import in_turn
from mfulab.tracing.of_window import OfWindow
from mfulab.tracing.shares import LOADER
from mfulab.tracing.trace import MODULE, Chosen, Indices, Times, Trace
from mfulab.tracing.window import STEPS, Window

_NOT_RANGES = (STEPS, "ProfilerStep#", "gloo:", "nccl:")
MOST_MODULES = 60  # that a row keeps
Names = tuple[str, ...]  # names of modules and ranges, the outermost first


@dataclass(frozen=True)
class Module:
    """Calls, time (ns) and FLOPs of one path of names and all below it. The time is that of
    kernels, on a CPU that of host calls."""

    path: Names
    calls: int
    time_ns: int
    flops: int


class Spans:
    """Spans of named modules and ranges on the host, and of unnamed calls of the backward pass.
    `parent` is the index of the span around each, or -1. `paths` are the names from the outermost;
    a backward call has those of its forward operator."""

    def __init__(self, trace: Trace) -> None:
        host = trace.host
        of_backward = trace.named(lambda name: name.startswith(BACKWARD))[host.name]
        named = host.annotation & trace.named(_is_range)[host.name]
        has_modules = trace.of_module.any()
        backward = of_backward & (host.sequence >= 0) & has_modules
        chosen = np.flatnonzero(named | backward)
        self.begin = host.begin[chosen]
        self.end = host.end[chosen]
        self.thread = host.thread[chosen]
        self.named = named[chosen]
        self._order = np.lexsort((-self.end, self.begin, self.thread))
        self.parent = np.full(len(chosen), -1)
        self.paths = [Names()] * len(chosen)
        self._nest([trace.names[name] for name in host.name[chosen].tolist()])
        self._open_calls = OpenCalls(self.begin, self.end, self.thread, self.parent, self._order)
        self._follow_forward(trace, host.sequence[chosen].tolist(), of_backward)

    def _nest(self, names: Sequence[str]) -> None:
        """Finds each span's parent and path of names, thread by thread."""
        stack = list[int]()
        for span in self._order.tolist():
            while stack and not self._is_inside(span, stack[-1]):
                stack.pop()
            if stack:
                self.parent[span] = stack[-1]
                self.paths[span] = self.paths[stack[-1]]
            if self.named[span]:
                self.paths[span] = (*self.paths[span], _plain_name(names[span]))
            stack.append(span)

    def _is_inside(self, span: int, around: int) -> bool:
        is_same = self.thread[around] == self.thread[span]
        return bool(is_same and self.end[around] >= self.end[span])

    def _follow_forward(self, trace: Trace, sequences: Sequence[int], of_backward: Chosen) -> None:
        """Gives each call of the backward pass the path of its forward operator, which has the same
        sequence number."""
        host = trace.host
        forward = np.flatnonzero(host.forward & (host.sequence >= 0) & ~of_backward)
        forward = forward[np.argsort(host.begin[forward], kind="stable")]
        around = self.at(host.begin[forward], host.thread[forward])
        # of operators with one number, the last
        outer = dict(zip(host.sequence[forward].tolist(), around.tolist(), strict=True))
        for span in self._order.tolist():
            owner = outer.get(sequences[span], -1)
            if not self.named[span] and owner >= 0:
                self.paths[span] = self.paths[owner]

    def at(self, times: Times, threads: Indices) -> Indices:
        """Index of the innermost span open on a thread at each of `times` (ns); -1 if there is
        none."""
        return self._open_calls.at(times, threads)

    def own_times(self, window: Window) -> list[int]:
        """Nanoseconds of each span in the window without the spans inside it; 0 for spans that are
        not on the thread with most time in spans."""
        begin = np.clip(self.begin, *window.span)
        end = np.clip(self.end, *window.span)
        lengths = end - begin
        is_inner = self.parent >= 0
        by_thread = np.bincount(self.thread, np.where(is_inner, 0, lengths))
        lengths[self.thread != by_thread.argmax()] = 0
        inner = np.bincount(self.parent[is_inner], lengths[is_inner], len(lengths))
        return (lengths - inner.astype(np.int64)).tolist()


def _is_range(name: str) -> bool:
    """True for names that users and modules give to ranges."""
    return not name.startswith(_NOT_RANGES) and LOADER.search(name) is None


def _plain_name(name: str) -> str:
    """Name of a range; that of a module without its number."""
    if name.startswith(MODULE):
        return name.removeprefix(MODULE).rpartition("_")[0]
    return name


class ByModule:
    """Splits a window by modules and ranges; calls are the same for all of its devices."""

    def __init__(self, facts: OfWindow, spans: Spans) -> None:
        self._facts = facts
        self._spans = spans
        if not len(spans.begin):
            return
        host = facts.trace.host
        launches = facts.trace.launches
        self._paths = [*spans.paths, ()]  # the last is for -1: outside of all modules
        self._owner = spans.at(host.begin, host.thread)
        called = np.flatnonzero(facts.window.called(spans.begin) & spans.named)
        self._calls = Counter(self._paths[span] for span in called.tolist())
        around_launch = spans.at(launches.begin, launches.thread)
        by_call = np.append(self._owner, -1)[facts.attribution.of_activity]
        by_launch = np.append(around_launch, -1)[facts.launched]
        has_launch = facts.launched >= 0
        self._of_activity = np.where(has_launch, by_launch, by_call)
        self._roots = set(facts.roots.tolist())

    def of(self, device: int | None = None) -> list[Module]:
        """Lists every module and range before its parts, longest first; the first row is the whole
        window. Empty if the trace has no modules and ranges."""
        if not len(self._spans.begin):
            return []
        if len(self._facts.trace.activities):
            time, owner_of = self._on_device(device)
        else:
            time, owner_of = self._on_host()
        return _tree(self._calls, time, self._flops(owner_of))

    def _on_device(self, device: int | None) -> tuple[Counter[Names], dict[int, int]]:
        """Returns device time (ns) per path, and the span of each product call that the device
        ran."""
        facts = self._facts
        activities = facts.trace.activities
        mine = facts.executed(device)
        mine = mine[np.argsort(activities.begin[mine], kind="stable")]
        own = in_turn(activities.begin[mine], activities.end[mine], *facts.window.span)
        lengths = own.end - own.begin
        spans = self._of_activity[mine]
        time = Counter[Names]()
        for span, length in zip(spans.tolist(), lengths.tolist(), strict=True):
            time[self._paths[span]] += length
        of_activity = facts.attribution.product_of_activity[mine]
        products, first = np.unique(of_activity, return_index=True)
        owner_of = dict[int, int]()
        for product, span in zip(products.tolist(), spans[first].tolist(), strict=True):
            if product in self._roots:
                owner_of[product] = span
        return time, owner_of

    def _on_host(self) -> tuple[Counter[Names], dict[int, int]]:
        """Returns host time (ns) per path, and the span of each product call."""
        window = self._facts.window
        time = Counter[Names]()
        own_times = self._spans.own_times(window)
        for path, length in zip(self._spans.paths, own_times, strict=True):
            time[path] += length
        time[()] += window.length - time.total()
        roots = self._facts.roots
        return time, dict(zip(roots.tolist(), self._owner[roots].tolist(), strict=True))

    def _flops(self, owner_of: dict[int, int]) -> Counter[Names]:
        attribution = self._facts.attribution
        flops = Counter[Names]()
        for root, span in owner_of.items():
            recorded = attribution.costs.get(root)
            if attribution.recomputed[root] or recorded is None or recorded.cost is None:
                continue
            flops[self._paths[span]] += recorded.cost.flops
        return flops


def _tree(calls: Counter[Names], time: Counter[Names], flops: Counter[Names]) -> list[Module]:
    """Lists modules of all paths, each before its parts, longest first."""
    times = _with_parts(time)
    sums = _with_parts(flops)
    modules = dict[Names, Module]()
    for path in {(), *calls, *times}:
        modules[path] = Module(path, calls[path], times[path], sums[path])
    inside = defaultdict[Names, list[Module]](list)
    for module in sorted(modules.values(), key=lambda module: (-module.time_ns, module.path)):
        if module.path:
            inside[module.path[:-1]].append(module)
    ordered = list[Module]()
    left = [modules[()]]
    while left:
        module = left.pop()
        ordered.append(module)
        left += reversed(inside[module.path])
    return ordered


def _with_parts(own: Counter[Names]) -> Counter[Names]:
    """Sums values over each path and all paths below it."""
    sums = Counter[Names]()
    for path, value in own.items():
        for depth in range(len(path) + 1):
            sums[path[:depth]] += value
    return sums


def column_of(modules: Sequence[Module]) -> str | None:
    """JSON of the longest modules, each before its parts; None if there are none."""
    if not modules:
        return None
    longest_first = sorted(modules, key=lambda module: (-module.time_ns, len(module.path)))
    kept = longest_first[:MOST_MODULES]
    rows = [vars(module) for module in modules if module in kept]
    return json.dumps(rows, ensure_ascii=False)
