"""Loads whose utilization is known by construction, to compare with the readings of each
counter."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mfulab.device import ByKind, is_gpu
from mfulab.models.busy import gpu_clocks_per_ms, spin
from mfulab.timing.clocks import clock_for

# side of the matmuls, which take a few milliseconds and fill the device
SIDE = ByKind(cpu=512, gpu=4096)
COPIED_BYTES = 64 << 20
SPIN_MS = 5.0


@dataclass(frozen=True)
class Load:
    """One kind of work, repeated during the first `duty` (a share) of each period."""

    work: str  # matmul, spin, copy or nothing
    duty: float = 1.0
    period_s: float = 0.1
    # part of the device that it occupies: all cores or SMs, one of them, or none
    fills: str = "all"
    useful: float = 1.0  # share of its FLOPs that a model needs; the rest multiplies padding


LOADS = {
    "idle": Load("nothing", duty=0.0, fills="none", useful=0.0),
    "spin_one": Load("spin", fills="one", useful=0.0),
    "copies": Load("copy", fills="one", useful=0.0),
    "duty_25": Load("matmul", duty=0.25),
    "duty_50": Load("matmul", duty=0.50),
    "duty_75": Load("matmul", duty=0.75),
    "padded": Load("matmul", useful=0.5),
    "steady": Load("matmul"),
    "bursty": Load("matmul", duty=0.2, period_s=0.5),
}


@dataclass(frozen=True)
class Ran:
    """Result of running a load, by its own clock: total seconds, seconds at work, calls, FLOPs, and
    useful FLOPs."""

    wall_s: float
    worked_s: float
    calls: int
    flops: int
    useful_flops: int

    @property
    def duty(self) -> float:
        """Share of the time at work. It exceeds the load's own if a period's last call overruns."""
        return self.worked_s / self.wall_s


class Loader:
    """A load prepared on a device, with memory allocated and code compiled."""

    def __init__(
        self, load: Load, device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> None:
        self.load = load
        self.device = device
        self._dtype = dtype
        self._work, self._flops = getattr(self, f"_{load.work}")(seed)

    def run(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> Ran:
        """Alternates work and rest for `seconds` of the clock. The device is idle before and
        afterwards."""
        began = clock()
        worked = 0.0
        calls = 0
        period = 0
        until = began + seconds
        while (now := clock()) < until:
            rest = began + (period + self.load.duty) * self.load.period_s
            while now < min(rest, until):
                self._work()
                after = clock()
                worked = worked + after - now
                calls = calls + 1
                now = after
            # Periods that a call overran are skipped, not made up for.
            period = max(period + 1, int((now - began) // self.load.period_s))
            pause = min(began + period * self.load.period_s, until) - now
            if pause > 0 and self.load.duty < 1:
                time.sleep(pause)
        flops = calls * self._flops
        return Ran(clock() - began, worked, calls, flops, round(flops * self.load.useful))

    def _nothing(self, seed: int) -> tuple[Callable[[], Any], int]:
        return (lambda: None), 0

    def _matmul(self, seed: int) -> tuple[Callable[[], Any], int]:
        """Returns a call that multiplies n × n × n, and its FLOPs. Padding, rows of zeros, is
        multiplied as well."""
        side = SIDE[self.device.type]
        generator = torch.Generator(self.device).manual_seed(seed)
        drawn = torch.randn(2, side, side, generator=generator, device=self.device)
        a, b = drawn.to(self._dtype)
        a[round(side * self.load.useful) :] = 0
        c = torch.empty_like(a)
        return self._finished(functools.partial(torch.mm, a, b, out=c)), 2 * side**3

    def _spin(self, seed: int) -> tuple[Callable[[], Any], int]:
        if is_gpu(self.device):
            clocks = int(SPIN_MS * gpu_clocks_per_ms(self.device))
            return self._finished(functools.partial(torch.cuda._sleep, clocks)), 0
        return self._finished(functools.partial(spin, 1, SPIN_MS)), 0

    def _copy(self, seed: int) -> tuple[Callable[[], Any], int]:
        source = torch.ones(COPIED_BYTES // 4)
        if is_gpu(self.device):
            source = source.pin_memory()
            on_device = torch.empty_like(source, device=self.device)
            return self._finished(functools.partial(on_device.copy_, source)), 0
        target = torch.empty_like(source).numpy()
        target[:] = 0
        return functools.partial(target.__setitem__, slice(None), source.numpy()), 0

    def _finished(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Wraps work to wait until the device is done, and calls it once."""
        clock = clock_for(self.device)

        def waited() -> None:
            work()
            clock.synchronise()

        waited()
        return waited


def filled(load: Load, device: torch.device, units: int) -> float:
    """Share of the device's `units` (cores that threads can fill, or SMs) that the load occupies
    while it works."""
    share = 1 / units
    if is_gpu(device) and load.work == "copy":
        share = 0.0
    return {"all": 1.0, "one": share, "none": 0.0}[load.fills]
