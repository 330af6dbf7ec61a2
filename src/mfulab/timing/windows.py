"""Runs a step until it is steady, then over independent windows: the only place where speed is measured.

Each window is: wait for the device, take the time, run N steps without waiting, wait, take the time. Samplers bracket
all windows together, so that what they average and what is timed are the same stretch.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mfulab.samplers.reading import Readings, Sampler, first_available, sampling
from mfulab.timing.clocks import Clock
from mfulab.timing.statistics import Stats

Step = Callable[[], object]


@dataclass(frozen=True)
class Pace:
    """Length of a measurement, in seconds; `tolerance` is the relative spread at which step times are steady."""

    windows: int
    window_s: float
    warm_up_s: float
    tolerance: float


# A device that ramps up doubles its clock; one that holds still moves it by some percent.
CLOCK_TOLERANCE = 0.1

# Of each process. The energy counter ticks each 100 ms and GPM wants more than that between samples: 3 s on a GPU.
CPU_PACE = Pace(windows=2, window_s=0.4, warm_up_s=1.0, tolerance=0.05)
CUDA_PACE = Pace(windows=3, window_s=1.1, warm_up_s=5.0, tolerance=0.02)


@dataclass(frozen=True)
class WarmUp:
    """The warm-up: `first_call_s` holds compilation and autotuning, `chunks_s` the step time of later chunks."""

    first_call_s: float
    total_s: float
    steady: bool
    chunks_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """The latest estimate of a step's time."""
        return self.chunks_s[-1]


@dataclass(frozen=True)
class WindowTimes:
    """One measured window: its length on the host's clock and the seconds of its steps."""

    length_s: float
    steps: int
    step_times_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return Stats(self.step_times_s).median


@dataclass(frozen=True)
class Observation:
    """All windows of one step, what warmed it up, and what the samplers read over the windows."""

    warm_up: WarmUp
    windows: tuple[WindowTimes, ...]
    readings: Readings = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return sum(window.steps for window in self.windows)

    @property
    def length_s(self) -> float:
        return math.fsum(window.length_s for window in self.windows)

    @property
    def time_s(self) -> float:
        """The median of the windows' median step times."""
        return Stats(window.median_s for window in self.windows).median

    @property
    def step_times_s(self) -> list[float]:
        return [step for window in self.windows for step in window.step_times_s]


def observe(
    step: Step,
    clock: Clock,
    pace: Pace,
    samplers: Sequence[Sampler] = (),
    frequency_mhz: Callable[[], float | None] = lambda: None,
    agree: Callable[[float], float] = float,
) -> Observation:
    """Warms up, then measures. `samplers` come in the order in which their values are preferred.

    `agree` gives all processes of one job the same number, so that they run the same steps.
    """
    warm = warm_up(step, clock, pace, frequency_mhz, agree)
    with sampling(samplers) as readings:
        windows = tuple(measure_window(step, clock, pace.window_s, warm.step_s) for _ in range(pace.windows))
    return Observation(warm, windows, first_available(readings))


def warm_up(
    step: Step,
    clock: Clock,
    pace: Pace,
    frequency_mhz: Callable[[], float | None] = lambda: None,
    agree: Callable[[float], float] = float,
) -> WarmUp:
    """Runs `step` until its time and the device's clock are flat, at most about `pace.warm_up_s` after the first call.

    A chunk is a tenth of that time, at least one step. Steady means that the last three chunks differ by at most
    `pace.tolerance`; a step so slow that only two fit in the time is judged by two.
    """
    began = time.perf_counter()
    first_call_s = _timed(step, clock, 1)
    second_s = agree(_timed(step, clock, 1))
    steps = max(1, math.ceil(pace.warm_up_s / 10 / max(second_s, 1e-7)))
    chunks, clocks = ([second_s], [frequency_mhz()]) if steps == 1 else ([], [])
    deadline = time.perf_counter() + pace.warm_up_s
    steady, left_s = False, pace.warm_up_s
    while not steady and (len(chunks) < 2 or left_s > 0):
        chunks.append(agree(_timed(step, clock, steps) / steps))
        clocks.append(frequency_mhz())
        left_s = agree(deadline - time.perf_counter())
        wanted = 3 if left_s > 0 else 2
        flat = _flat(chunks[-wanted:], wanted, pace.tolerance) and _flat_clock(clocks[-wanted:])
        steady = agree(float(not flat)) == 0
    return WarmUp(first_call_s, time.perf_counter() - began, steady, tuple(chunks))


def measure_window(step: Step, clock: Clock, length_s: float, estimate_s: float) -> WindowTimes:
    """One window of about `length_s` or more, for a step that takes `estimate_s`."""
    # Marks are no denser than the clock allows.
    stride = max(1, math.ceil(clock.resolution_s / max(estimate_s, 1e-9)))
    strides = max(1, math.ceil(length_s / max(estimate_s * stride, 1e-9)))
    clock.synchronise()
    began = time.perf_counter()
    clock.mark()
    for _ in range(strides):
        for _ in range(stride):
            step()
        clock.mark()
    clock.synchronise()
    length = time.perf_counter() - began
    return WindowTimes(length, strides * stride, tuple(interval / stride for interval in clock.intervals()))


def _timed(step: Step, clock: Clock, steps: int) -> float:
    clock.synchronise()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    clock.synchronise()
    return time.perf_counter() - began


def _flat(values: Sequence[float], wanted: int, tolerance: float) -> bool:
    return len(values) >= wanted and max(values) - min(values) <= tolerance * min(values)


def _flat_clock(values: Sequence[float | None]) -> bool:
    """True if the device's clock stood still; a device that does not report it is judged by time alone."""
    known = [value for value in values if value]
    return not known or _flat(known, 1, CLOCK_TOLERANCE)
