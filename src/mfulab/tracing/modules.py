"""A step's time and FLOPs by the model's modules and by marked ranges. torch.profiler records modules as `nn.Module:
NAME_NUMBER`; ranges are those of `record_function` and NVTX. Work of a backward pass belongs to the module of the
forward operator that has its sequence number."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mfulab.tracing.attribution import BACKWARD, Attribution, open_at
from mfulab.tracing.intervals import in_turn
from mfulab.tracing.shares import LOADER
from mfulab.tracing.trace import MODULE, Indices, Times, Trace, launch_of
from mfulab.tracing.window import STEPS, Window

_NOT_RANGES = (STEPS, "ProfilerStep#", "gloo:", "nccl:")
MOST_MODULES = 60  # that a row keeps
Names = tuple[str, ...]  # names of modules and ranges, the outermost first


@dataclass(frozen=True)
class Module:
    """Calls, ns (of kernels, on a CPU the host's) and FLOPs of one path of names and all below it."""

    path: Names
    calls: int
    time_ns: int
    flops: int


class Spans:
    """Named modules and ranges on the host, and unnamed calls of the backward pass. `parent` is the span around each,
    or -1; `paths` are the names from the outermost, of a backward call those of its forward operator."""

    def __init__(self, trace: Trace) -> None:
        host = trace.host
        of_backward = trace.named(lambda name: name.startswith(BACKWARD))[host.name]
        ranges = trace.named(lambda name: not name.startswith(_NOT_RANGES) and not LOADER.search(name))
        named = host.annotation & ranges[host.name]
        chosen = np.flatnonzero(named | (of_backward & (host.sequence >= 0) & trace.of_module.any()))
        self.begin, self.end, self.thread = host.begin[chosen], host.end[chosen], host.thread[chosen]
        self.named, self._order = named[chosen], np.lexsort((-self.end, self.begin, self.thread))
        self.parent, self.paths = np.full(len(chosen), -1), [Names()] * len(chosen)
        stack = list[int]()
        for span in self._order.tolist():
            while stack and (self.thread[stack[-1]] != self.thread[span] or self.end[stack[-1]] < self.end[span]):
                stack.pop()
            if stack:
                self.parent[span], self.paths[span] = stack[-1], self.paths[stack[-1]]
            if self.named[span]:
                name = trace.names[host.name[chosen[span]]]
                name = name.removeprefix(MODULE).rpartition("_")[0] if name.startswith(MODULE) else name
                self.paths[span] = (*self.paths[span], name)
            stack.append(span)
        forward = np.flatnonzero(host.forward & (host.sequence >= 0) & ~of_backward)
        forward = forward[np.argsort(host.begin[forward], kind="stable")]
        last = dict(zip(host.sequence[forward].tolist(), forward.tolist(), strict=True))
        backward = [at for at in self._order.tolist() if not self.named[at] and host.sequence[chosen[at]] in last]
        calls = [last[host.sequence[chosen[at]]] for at in backward]
        for span, around in zip(backward, self.at(host.begin[calls], host.thread[calls]).tolist(), strict=True):
            self.paths[span] = self.paths[around] if around >= 0 else self.paths[span]

    def at(self, times: Times, threads: Indices) -> Indices:
        """The innermost span that is open on a thread at each of `times`; -1 without one."""
        return open_at(self.begin, self.end, self.thread, self.parent, self._order, times, threads)

    def own_times(self, window: Window) -> list[int]:
        """Nanoseconds of each span in the window without those inside it, of the thread that has most of them."""
        lengths = np.clip(self.end, window.begin, window.end) - np.clip(self.begin, window.begin, window.end)
        outer = np.bincount(self.thread, np.where(self.parent < 0, lengths, 0))
        own = np.where(self.thread == outer.argmax(), lengths, 0)
        inner = np.bincount(self.parent[self.parent >= 0], own[self.parent >= 0], len(own)).astype(np.int64)
        return (own - inner).tolist()


def by_module(
    trace: Trace, attribution: Attribution, window: Window, spans: Spans, device: int | None = None
) -> list[Module]:
    """Every module and range before its parts, longest first; none without any. The first is all of the window."""
    if not len(spans.begin):
        return []
    paths, time, flops = [*spans.paths, ()], Counter[Names](), Counter[Names]()  # the last is that of -1: of no module
    host, activities = trace.host, trace.activities
    owner = spans.at(host.begin, host.thread)
    roots = np.flatnonzero((attribution.product == np.arange(len(host))) & window.called(host.begin))
    if len(activities):
        launch, called = launch_of(trace), attribution.of_activity
        launched = spans.at(trace.launches.begin, trace.launches.thread)
        of_activity = np.where(launch >= 0, np.append(launched, -1)[launch], np.append(owner, -1)[called])
        mine = window.executed(activities, device)
        mine = mine[np.argsort(activities.begin[mine], kind="stable")]
        own = in_turn(activities.begin[mine], activities.end[mine], window.begin, window.end)
        for span, length in zip(of_activity[mine].tolist(), (own.end - own.begin).tolist(), strict=True):
            time[paths[span]] += length
        products, first = np.unique(attribution.product_of_activity[mine], return_index=True)
        owner[products[products >= 0]] = of_activity[mine][first[products >= 0]]
        roots = roots[np.isin(roots, products)]
    else:
        for path, length in zip(spans.paths, spans.own_times(window), strict=True):
            time[path] += length
        time[()] += window.length - time.total()
    for root in roots[~attribution.recomputed[roots]].tolist():
        recorded = attribution.costs.get(root)
        if recorded is not None and recorded.cost is not None:
            flops[paths[owner[root]]] += recorded.cost.flops
    calls = Counter(paths[span] for span in np.flatnonzero(window.called(spans.begin) & spans.named).tolist())
    return _tree(calls, time, flops)


def _tree(calls: Counter[Names], time: Counter[Names], flops: Counter[Names]) -> list[Module]:
    sums = Counter[Names](), Counter[Names]()
    for total, own in zip(sums, (time, flops), strict=True):
        for path, value in own.items():
            for depth in range(len(path) + 1):
                total[path[:depth]] += value
    modules = {path: Module(path, calls[path], sums[0][path], sums[1][path]) for path in {(), *calls, *sums[0]}}
    below = defaultdict[Names, list[Module]](list)
    for module in sorted(modules.values(), key=lambda module: (-module.time_ns, module.path)):
        below[module.path[:-1]] += [module] if module.path else []

    def walk(path: Names) -> list[Module]:
        return [modules[path], *(inner for module in below[path] for inner in walk(module.path))]

    return walk(())


def column_of(modules: Sequence[Module]) -> str | None:
    """JSON of the longest modules, each before its parts; None without any."""
    kept = sorted(modules, key=lambda module: (-module.time_ns, len(module.path)))[:MOST_MODULES]
    return json.dumps([vars(module) for module in modules if module in kept], ensure_ascii=False) if kept else None
