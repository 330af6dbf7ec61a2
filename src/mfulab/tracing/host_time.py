"""Splits a window's time on a CPU by the calls of the steps' thread."""

from collections import Counter

import numpy as np

from mfulab.core.said import Said
from mfulab.device.samplers.reading import Readings
from mfulab.tracing import shares
from mfulab.tracing.attribution import FUSED, Attribution
from mfulab.tracing.intervals import Intervals, clip, exclusive, length, union
from mfulab.tracing.shares import SPENT, KernelRow, operator_name
from mfulab.tracing.trace import Chosen, Indices, Trace
from mfulab.tracing.window import Window

_GLOO = "gloo:"  # begins the name of a collective, which runs on gloo's own thread
_QUEUES = "c10d::"  # begins the name of the call that queues it


def _thread_of_steps(trace: Trace, window: Window, inside: Chosen) -> int:
    """Thread that the window's steps ran on: the one that marked them, else the one with most of
    the calls `inside` the window; -1 if there are none."""
    host = trace.host
    marks = host.annotation & (host.begin == window.begin)
    marking = host.thread[marks]
    if len(marking):
        return int(marking[0])
    threads, counts = np.unique(host.thread[inside], return_counts=True)
    if len(threads):
        return int(threads[counts.argmax()])
    return -1


class HostTime:
    """Splits a window's time on a CPU by the calls of the steps' thread."""

    def __init__(
        self, trace: Trace, attribution: Attribution, window: Window, counted: set[int]
    ) -> None:
        self.trace = trace
        self.attribution = attribution
        self.window = window
        host = trace.host
        called = window.called(host.begin)
        inside = called & ~host.annotation
        on_thread = host.thread == _thread_of_steps(trace, window, inside)
        self.inside = np.flatnonzero(inside & on_thread)
        is_product = attribution.product[self.inside] == self.inside
        products = self.inside[is_product]
        self.roots = set(products.tolist())  # each in no other
        self.sent = np.flatnonzero(host.annotation & self._begins(_GLOO) & called)
        is_outermost = attribution.outermost[self.inside] == self.inside
        queues = self._begins(_QUEUES)[self.inside]
        self.outer = self.inside[is_outermost & ~queues]
        has_flops = np.isin(products, np.fromiter(counted, np.int64, len(counted)))
        recomputed = has_flops & attribution.recomputed[products]
        kinds = {
            "products": self._spans(products[has_flops & ~recomputed]),
            "recomputed": self._spans(products[recomputed]),
            "uncounted": self._spans(products),
            "input_wait": shares.waits(trace),
            "others": self._spans(self.outer),
            "communication": self._spans(self.sent),
        }
        parts = exclusive(list(kinds.values()), *window.span)
        self.spent = dict.fromkeys(SPENT, 0)
        for name, part in zip((*kinds, "idle"), parts, strict=True):
            self.spent[name] = length(part)
        self.parts = {(kind, "", ""): time for kind, time in self.spent.items() if time}
        self.idle_causes: dict[str, int] = {}  # nothing waits for a launch

    def _begins(self, prefix: str) -> Chosen:
        begins = self.trace.named(lambda name: name.startswith(prefix))
        of_calls: Chosen = begins[self.trace.host.name]
        return of_calls

    def _spans(self, chosen: Indices | Chosen) -> Intervals:
        return self.trace.host.where(chosen)

    def readings(self) -> Readings:
        """Shares of the window by column; a value that is None has its reason."""
        absent = dict.fromkeys(
            (*shares.OF_KERNELS, "communication_total_percent", "launch_bound_percent")
        )
        empty = shares.readings(absent, reason=Said("no_kernels_of_cpu"))
        source = "operators on the host"
        multiplied = shares.multiplying(self.spent)
        others = self.spent["others"]
        if not multiplied and (not others or self.others().get(FUSED)):
            key = "no_operator_time"
            if others:
                key = "inside_compiled"
            reason = Said(key)
            return empty | shares.readings(
                dict.fromkeys(shares.OF_OPERATORS), source, reason=reason
            )
        times = {"matmul_percent": multiplied, "other_operators_percent": others}
        if len(self.sent):
            times["communication_percent"] = self.spent["communication"]
            sent = union(clip(self._spans(self.sent), *self.window.span))
            times["communication_total_percent"] = length(sent)
        wall = self.window.length
        values = {name: 100 * time / wall for name, time in times.items()}
        return empty | shares.readings(values, f"{source}, {self.window.steps} steps", wall / 1e9)

    def kernels(self) -> list[KernelRow]:
        """Empty: a CPU runs operators."""
        return []

    def longest_gaps(self) -> list[tuple[str, int, str]]:
        """Empty: nothing waits for a launch."""
        return []

    def collectives(self) -> dict[str, list[int]]:
        """Durations (ns) of gloo's collectives per name, in order of begin, from queueing to
        completion."""
        return shares.lengths_by_name(self.trace.names, self.trace.host, self.sent)

    def others(self) -> dict[str, int]:
        """Time (ns) of each outermost operator that is not a product, without the products inside
        it."""
        host = self.trace.host
        times = Counter[str]()
        lengths = host.lengths
        for call in self.outer.tolist():
            if call not in self.roots:
                times[self._name(call)] += int(lengths[call])
        for root in self.roots:
            above = int(self.attribution.outermost[root])
            around = self.attribution.around[root]
            # a product inside another is part of that one's time
            if above not in (root, -1) and around < 0:
                times[self._name(above)] -= int(lengths[root])
        return dict(times)

    def _name(self, call: int) -> str:
        return operator_name(self.trace.names[self.trace.host.name[call]])
