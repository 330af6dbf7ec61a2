"""State of the machine between windows: the time of a fixed matmul and of a copy ÷ the machine's
best."""

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

DISTURBED = 1.3  # times as slow as the machine's best: above what the probe itself varies by
PLACED = 1.4  # a copy varies so much between processes of an idle machine, by where their pages lie
OTHERS = 0.2  # of the CPUs' time, taken by other processes
REPEATED = 7  # the first brings what was measured out of the caches, and does not count
MOST_COST = 1 / 33  # of the time: between two probes lies this many times what one took
SIDE = ByKind(cpu=256, gpu=2048)  # of a matmul; 256³ takes under a millisecond
COPIED_BYTES = ByKind(cpu=8 << 20, gpu=64 << 20)


class Best(NamedTuple):
    """Seconds of both parts at the best that is known of this machine."""

    product_s: float = math.inf
    copy_s: float = math.inf


UNKNOWN = Best()


@dataclass(frozen=True)
class State:
    """One probe of the machine."""

    at_s: float  # Unix time
    product_s: float  # of its matmul
    copy_s: float
    clock_mhz: float | None = None  # a GPU's
    others_s: float = 0.0  # running total of other processes' CPU time; of a GPU 0, as the next
    total_s: float = 0.0  # running total of all time of the CPUs that this process may use

    def slowdown(self, best: Best) -> float:
        """Slowdown of the slower part against its best, 1 or more; a copy's beyond what processes
        differ by."""
        return max(1.0, self.product_s / best.product_s, self.copy_s / best.copy_s / PLACED)


Watch = Callable[[], State]
"""Returns the machine's state now, or the latest one if asking again would cost too much."""


def best_of(states: Iterable[State], best: Best = UNKNOWN) -> Best:
    """The fastest of each part, `best` included."""
    seen: list[Best | State] = [best, *states]
    return Best(min(state.product_s for state in seen), min(state.copy_s for state in seen))


def is_disturbed(before: State, after: State, best: Best) -> bool:
    """True if what ran between two probes met a slower state of the machine, or other processes."""
    if max(before.slowdown(best), after.slowdown(best)) >= DISTURBED:
        return True
    total = after.total_s - before.total_s
    return total > 0 and (after.others_s - before.others_s) / total >= OTHERS


class Probe:
    """Probes a torch.device in at most MOST_COST of the time, else gives its latest state;
    `spent_s` is its cost."""

    def __init__(
        self, device: "torch.device", clock_mhz: Callable[[], float | None] = lambda: None
    ) -> None:
        import torch

        from mfulab.device.allocator import mapped

        self._inference_mode = torch.inference_mode
        self._on_cpu, self._clock_mhz, self._clock = (
            device.type == "cpu",
            clock_mhz,
            clock_for(device),
        )
        side = SIDE[device.type]
        size = COPIED_BYTES[device.type]
        generator = torch.Generator().manual_seed(
            0
        )  # the model's own random numbers stay as they are
        # a GPU's float32 would follow the switch for TF32
        dtype = torch.float32 if self._on_cpu else torch.float16
        # In mappings of their own: freed or not, they move no threshold of malloc and leave no hole
        # in the heap.
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
            self.again()  # libraries start: not before the step has been warmed up without them
        if self._latest is None or now >= self._next:
            self._latest = self.again()
            ended = time.perf_counter()
            self.spent_s += ended - now
            self._next = ended + (ended - now) / MOST_COST
        return self._latest

    def again(self) -> State:
        """The state now, whatever it costs."""
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
    """The best of a torch.device within `limit_s` seconds, as it is now."""
    probe = Probe(device)
    deadline = time.perf_counter() + limit_s
    best = UNKNOWN
    while time.perf_counter() < deadline:
        best = best_of([probe.again()], best)
    return best


def packed(states: Sequence[State], threads: int) -> str | None:
    """Probes as JSON, for a row: Unix times, seconds of each part, a GPU's clocks, once each; None
    without any."""
    distinct = list(dict.fromkeys(states))
    if not distinct:
        return None
    columns = {
        "threads": threads,
        "at_s": [round(state.at_s, 2) for state in distinct],
        "product_s": [float(f"{state.product_s:.4g}") for state in distinct],
        "copy_s": [float(f"{state.copy_s:.4g}") for state in distinct],
    }
    clocks = [state.clock_mhz for state in distinct]
    return json.dumps(columns if None in clocks else {**columns, "clock_mhz": clocks})


def known_best(folder: Path) -> Best:
    """The machine's best as its environment's row has it, of the run whose folder this is; unknown
    without one."""
    try:
        (row,) = read_csv(folder.parents[1] / "environment/all/row.csv")
        return Best(float(row["probe_product_s"]), float(row["probe_copy_s"]))
    except (OSError, UnreadableError, ValueError, KeyError, IndexError):
        return UNKNOWN
