"""State of the machine between windows: the time of a fixed matmul and a fixed copy, relative to
the machine's best."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mfulab.core.files import UnreadableError, read_csv
from mfulab.device import ByKind
from mfulab.device.cpu import system_seconds
from mfulab.timing.clocks import clock_for

if TYPE_CHECKING:
    import torch

DISTURBED = 1.3  # slowdown against the machine's best, above the probe's own variation
PLACED = 1.4  # variation of a copy between processes of an idle machine, due to page placement
OTHERS = 0.2  # share of the CPU time that other processes take
REPEATED = 7  # the first repetition evicts the step's data from the caches and does not count
MOST_COST = 1 / 33  # share of the time: after a probe, the next one waits 33 times its duration
SIDE = ByKind(cpu=256, gpu=2048)  # of the matmul; 256³ takes less than a millisecond
COPIED_BYTES = ByKind(cpu=8 << 20, gpu=64 << 20)


class Best(NamedTuple):
    """Best known seconds of both parts of a probe on this machine."""

    product_s: float = math.inf
    copy_s: float = math.inf


UNKNOWN = Best()


@dataclass(frozen=True)
class State:
    """Result of one probe of the machine."""

    at_s: float  # Unix time
    product_s: float  # of the matmul
    copy_s: float
    clock_mhz: float | None = None  # of a GPU
    # running totals of other processes' CPU time, and of the usable CPUs' time; 0 for a GPU
    others_s: float = 0.0
    total_s: float = 0.0

    def slowdown(self, best: Best) -> float:
        """Slowdown of the slower part relative to its best, at least 1. For the copy, only what
        exceeds the variation between processes."""
        return max(1.0, self.product_s / best.product_s, self.copy_s / best.copy_s / PLACED)


Watch = Callable[[], State]
"""Returns the machine's state now, or the latest one if asking again would cost too much."""


def best_of(states: Iterable[State], best: Best = UNKNOWN) -> Best:
    """Fastest time of each part over all states and `best`."""
    seen: list[Best | State] = [best, *states]
    return Best(min(state.product_s for state in seen), min(state.copy_s for state in seen))


def is_disturbed(before: State, after: State, best: Best) -> bool:
    """True if either probe met a slow machine, or other processes took at least OTHERS of the CPU
    time between them."""
    if max(before.slowdown(best), after.slowdown(best)) >= DISTURBED:
        return True
    total = after.total_s - before.total_s
    return total > 0 and (after.others_s - before.others_s) / total >= OTHERS


class Probe:
    """Probes a torch.device. Returns its latest state if a new probe would take more than MOST_COST
    of the time. `spent_s` is the total cost."""

    def __init__(
        self, device: "torch.device", clock_mhz: Callable[[], float | None] = lambda: None
    ) -> None:
        import torch

        from mfulab.device.allocator import mapped

        self._inference_mode = torch.inference_mode
        self._on_cpu = device.type == "cpu"
        self._clock_mhz = clock_mhz
        self._clock = clock_for(device)
        side = SIDE[device.type]
        size = COPIED_BYTES[device.type]
        # a generator of its own, so that the model's random numbers do not change
        generator = torch.Generator().manual_seed(0)
        # on a GPU, float32 would depend on the TF32 switch
        dtype = torch.float32 if self._on_cpu else torch.float16
        # In separate mappings, so that they affect neither malloc's thresholds nor the heap.
        left, out = (mapped(side, side, dtype=torch.float32) for _ in range(2))
        left = torch.randn(side, side, generator=generator, out=left).to(device, dtype)
        out = out.to(device, dtype)
        source, target = (mapped(size, dtype=torch.uint8).to(device) for _ in range(2))
        self._parts = partial(torch.mm, left, left, out=out), partial(target.copy_, source)
        self.spent_s = 0.0
        self._next = 0.0
        self._latest: State | None = None

    def __call__(self) -> State:
        now = time.perf_counter()
        if self._latest is None:
            self.again()  # starts libraries: only after the step was warmed up without them
        if self._latest is None or now >= self._next:
            self._latest = self.again()
            ended = time.perf_counter()
            self.spent_s += ended - now
            self._next = ended + (ended - now) / MOST_COST
        return self._latest

    def again(self) -> State:
        """Probes the machine now, regardless of cost."""
        with self._inference_mode():
            product_s, copy_s = (min(self._timed(part)[1:]) for part in self._parts)
        others_s = total_s = 0.0
        if self._on_cpu:
            system = system_seconds()
            own = os.times()
            others_s = system.busy - own.user - own.system
            total_s = system.total
        return State(time.time(), product_s, copy_s, self._clock_mhz(), others_s, total_s)

    def _timed(self, part: Callable[[], object]) -> list[float]:
        self._clock.synchronise()
        self._clock.mark()
        for _ in range(REPEATED):
            part()
            self._clock.mark()
        return self._clock.intervals()


def best_now(device: "torch.device", limit_s: float) -> Best:
    """Best state of a torch.device over `limit_s` seconds from now."""
    probe = Probe(device)
    deadline = time.perf_counter() + limit_s
    best = UNKNOWN
    while time.perf_counter() < deadline:
        best = best_of([probe.again()], best)
    return best


def packed(states: Sequence[State], threads: int) -> str | None:
    """Probes as JSON for a row, without duplicates: Unix times, seconds of each part, and clocks of
    a GPU. None without probes."""
    distinct = list(dict.fromkeys(states))
    if not distinct:
        return None
    columns: dict[str, object] = {
        "threads": threads,
        "at_s": [round(state.at_s, 2) for state in distinct],
        "product_s": [float(f"{state.product_s:.4g}") for state in distinct],
        "copy_s": [float(f"{state.copy_s:.4g}") for state in distinct],
    }
    clocks = [state.clock_mhz for state in distinct]
    if None not in clocks:
        columns["clock_mhz"] = clocks
    return json.dumps(columns)


def known_best(folder: Path) -> Best:
    """Best state of the machine from the environment's row; `folder` is that of a run. UNKNOWN if
    there is no such row."""
    try:
        (row,) = read_csv(folder.parents[1] / "environment/all/row.csv")
        return Best(float(row["probe_product_s"]), float(row["probe_copy_s"]))
    except (OSError, UnreadableError, ValueError, KeyError, IndexError):
        return UNKNOWN
