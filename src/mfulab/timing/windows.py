"""Runs a step until it is steady, then measures it over independent windows. Speed is measured only
here. A window synchronises, starts the clock, runs N steps without waiting, synchronises and stops
the clock. Samplers enclose all windows together. Windows that met a disturbed machine are repeated
while patience lasts."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mfulab.device.allocator import page_faults
from mfulab.device.interruptions import pauses
from mfulab.device.samplers.reading import Readings, Sampler, first_available, sampling
from mfulab.timing.clocks import Clock
from mfulab.timing.pace import Pace
from mfulab.timing.probe import UNKNOWN, Best, State, Watch, best_of, is_disturbed
from mfulab.timing.statistics import FEWEST_WINDOWS, Stats, relative_half_width

Step = Callable[[], object]


# A clock that ramps up may double; a settled one varies by a few percent.
CLOCK_TOLERANCE = 0.1

# remaining work when a window's second sample is taken: several times the cost of a sample
IN_FLIGHT_S = 0.02
FAULT_S = 2.5e-7  # minimum cost of a page fault
ATTEMPTS = 2  # to measure windows in which no process is paused
NOTICED = 0.01  # share of a step above which page faults count


def are_noticed(faults: float, step_s: float) -> bool:
    """True if this many page faults take a measurable share of a step."""
    return faults * FAULT_S >= NOTICED * step_s


@dataclass(frozen=True)
class WarmUp:
    """Results of the warm-up."""

    first_call_s: float  # includes compilation and autotuning
    total_s: float
    steady: bool
    chunks_s: tuple[float, ...]  # step time of later chunks
    unsettled_s: float  # time and page faults of a step before the process was settled
    unsettled_faults: float


@dataclass(frozen=True)
class WindowTimes:
    """Measured window: its length in wall seconds, the seconds of its steps, and the probes before
    and after it."""

    length_s: float
    steps: int
    step_times_s: tuple[float, ...]
    states: tuple[State, State] | None = None
    pauses: int = 0  # of this process within the window

    def is_disturbed(self, best: Best) -> bool:
        """True if the machine was slower around the window than at `best`, other processes
        computed, or this process was paused."""
        if self.pauses and self.states is not None:
            return True
        return self.states is not None and is_disturbed(*self.states, best)

    def slowdown(self, best: Best) -> float:
        """Slowdown of the machine against `best`, at the slower of both probes."""
        return max(state.slowdown(best) for state in self.states or ())

    @property
    def median_s(self) -> float:
        return Stats(self.step_times_s).median


Windows = tuple[WindowTimes, ...]


@dataclass(frozen=True)
class Observation:
    """All windows of one step, its warm-up, and the samplers' readings over the windows."""

    warm_up: WarmUp
    windows: Windows  # windows that count
    readings: Readings = field(default_factory=dict)
    discarded: Windows = ()  # disturbed windows that were measured again
    best: Best = UNKNOWN
    # step time of the slowest process, the same in all processes of a job
    agreed_s: float = math.nan

    @property
    def steps(self) -> int:
        """Number of steps that the samplers observed, in all windows."""
        return sum(window.steps for window in (*self.windows, *self.discarded))

    @property
    def length_s(self) -> float:
        return math.fsum(window.length_s for window in (*self.windows, *self.discarded))

    @property
    def disturbed(self) -> int:
        """Number of windows that count although they were disturbed, because patience was
        exhausted."""
        return sum(window.is_disturbed(self.best) for window in self.windows)

    @property
    def states(self) -> list[State]:
        """All probes in order of time."""
        both = [window.states for window in (*self.windows, *self.discarded) if window.states]
        return sorted({state for pair in both for state in pair}, key=lambda state: state.at_s)

    @property
    def time_s(self) -> float:
        """Median of the windows' median step times."""
        return Stats(window.median_s for window in self.windows).median

    @property
    def fastest_s(self) -> float:
        """Median step time of the fastest window. A speed sustained over a window, rather than one
        lucky step."""
        return min(window.median_s for window in self.windows)

    @property
    def spread_percent(self) -> float | None:
        """Standard deviation of the windows' medians, relative to their median. None for a single
        window."""
        medians = Stats(window.median_s for window in self.windows)
        return medians.standard_deviation and 100 * medians.standard_deviation / medians.median

    @property
    def step_times_s(self) -> list[float]:
        return [step for window in self.windows for step in window.step_times_s]


def observe(
    step: Step,
    clock: Clock,
    pace: Pace,
    samplers: Sequence[Sampler] = (),
    frequency_mhz: Callable[[], float | None] = lambda: None,
    watch: Watch | None = None,
    best: Best = UNKNOWN,
    agree: Callable[[float], float] = float,
    settle: Callable[[], object] = lambda: None,
) -> Observation:
    """Warms up and measures a step. `samplers` are in order of preference. `settle` prepares the
    process after the first warm-up steps. `watch` returns the machine's state around each window,
    `best` its undisturbed one. `agree` reduces a number over all processes of a job, so that all
    run the same steps. If a process was paused, all windows are measured again, because readings
    cover every window."""
    warm = warm_up(step, clock, pace, frequency_mhz, agree, settle)
    estimate_s = min(warm.chunks_s)
    in_flight = _in_flight(samplers)

    def window() -> WindowTimes:
        nonlocal estimate_s
        window = measure_window(step, clock, pace.window_s, estimate_s, in_flight, pace.turn)
        # corrects an estimate from a disturbed warm-up for all windows but the first
        estimate_s = min(estimate_s, agree(window.median_s))
        return window

    if watch is not None:
        watch()  # lets its libraries allocate memory before the windows
    for _ in range(ATTEMPTS):
        pauses_before = pauses()
        with sampling(samplers) as readings:
            made = collect(window, pace, watch, best)
        if not agree(float(pauses() - pauses_before)):
            break
    best = best_of((state for window in made for state in window.states or ()), best)
    kept, discarded = counted(made, pace.windows, best)
    seen = Observation(warm, kept, first_available(readings), discarded, best)
    return replace(seen, agreed_s=agree(seen.time_s))


def _in_flight(samplers: Sequence[Sampler]) -> Callable[[], None] | None:
    """Returns a function that takes the samples due in the middle of a window; None if no sampler
    takes one."""
    takes = [sampler.in_flight for sampler in samplers if hasattr(sampler, "in_flight")]
    if not takes:
        return None

    def take() -> None:
        for sample in takes:
            sample()

    return take


def collect(
    window: Callable[[], WindowTimes], pace: Pace, watch: Watch | None = None, best: Best = UNKNOWN
) -> list[WindowTimes]:
    """Measures windows until `pace.windows` of them are undisturbed and precise, or patience is
    exhausted."""
    made: list[WindowTimes] = []
    spent_s = 0.0
    before = None
    if watch:
        before = watch()
    while True:
        times = window()
        if watch is not None and before is not None:
            after = watch()
            times = replace(times, states=(before, after))
            best = best_of((before, after), best)
            before = after
        made.append(times)
        if len(made) < pace.windows:
            continue
        if len(made) > pace.windows:
            spent_s += times.length_s
        if _is_enough(made, pace, best) or spent_s + times.length_s > pace.patience_s:
            return made


def _is_enough(made: Sequence[WindowTimes], pace: Pace, best: Best) -> bool:
    """True if enough windows are undisturbed and their median is precise."""
    quiet = [times.median_s for times in made if not times.is_disturbed(best)]
    if len(quiet) < pace.windows:
        return False
    if pace.precision is None:
        return True
    if len(quiet) < FEWEST_WINDOWS:
        return False
    half_width = relative_half_width(quiet)
    return half_width is not None and half_width <= pace.precision


def counted(made: Sequence[WindowTimes], wanted: int, best: Best) -> tuple[Windows, Windows]:
    """Splits windows into those that count and those that do not. Drops the most disturbed ones, as
    long as `wanted` windows remain."""
    disturbed = [index for index, window in enumerate(made) if window.is_disturbed(best)]
    disturbed.sort(key=lambda index: made[index].slowdown(best))
    missing = max(0, wanted - (len(made) - len(disturbed)))
    left_out = sorted(disturbed[missing:])
    kept = tuple(window for index, window in enumerate(made) if index not in left_out)
    return kept, tuple(made[index] for index in left_out)


def warm_up(
    step: Step,
    clock: Clock,
    pace: Pace,
    frequency_mhz: Callable[[], float | None] = lambda: None,
    agree: Callable[[float], float] = float,
    settle: Callable[[], object] = lambda: None,
) -> WarmUp:
    """Runs `step` until its time and the device's clock are flat, at most about `pace.warm_up_s`
    after the first call. A chunk of steps takes a tenth of that, at least one step. Steady means
    that the last three chunks (two if time is over) differ by at most `pace.tolerance`. `settle` is
    called after the first chunk, which counts unless its page faults took a noticeable time."""
    began = time.perf_counter()
    first_call_s = _timed(step, clock, 1)
    before = page_faults()
    first_s = agree(_timed(step, clock, 1))
    steps = max(1, math.ceil(pace.warm_up_s / 10 / max(first_s, 1e-7)))
    deadline = time.perf_counter() + pace.warm_up_s
    if steps > 1:
        before = page_faults()
        first_s = agree(_timed(step, clock, steps) / steps)
    faults = (page_faults() - before) / steps
    settle()
    again = are_noticed(agree(faults), first_s)
    chunks, clocks = ([], []) if again else ([first_s], [frequency_mhz()])
    steady = False
    left_s = pace.warm_up_s
    while not steady and (len(chunks) < 2 or left_s > 0):
        chunks.append(agree(_timed(step, clock, steps) / steps))
        clocks.append(frequency_mhz())
        left_s = agree(deadline - time.perf_counter())
        wanted = 3 if left_s > 0 else 2
        # if the device reports no clock, only the time counts
        read_mhz = [mhz for mhz in clocks[-wanted:] if mhz]
        stands_still = not read_mhz or _flat(read_mhz, 1, CLOCK_TOLERANCE)
        flat = _flat(chunks[-wanted:], wanted, pace.tolerance) and stands_still
        steady = agree(float(not flat)) == 0
    return WarmUp(first_call_s, time.perf_counter() - began, steady, tuple(chunks), first_s, faults)


def measure_window(
    step: Step,
    clock: Clock,
    length_s: float,
    estimate_s: float,
    in_flight: Callable[[], object] | None = None,
    turn: int = 1,
) -> WindowTimes:
    """Measures one window of at least about `length_s`. Step times are means over `turn` steps or a
    multiple. `in_flight` is called after the first steps and shortly before the end."""
    # Limits the marks to the clock's resolution.
    stride = turn * max(1, math.ceil(clock.resolution_s / max(turn * estimate_s, 1e-9)))
    strides = max(1, math.ceil(length_s / max(estimate_s * stride, 1e-9)))
    clock.synchronise()
    pauses_before = pauses()
    began = time.perf_counter()
    clock.mark()
    for place in range(strides):
        for _ in range(stride):
            step()
        clock.mark()
        if place == 0 and in_flight:
            in_flight()
    if in_flight:
        clock.wait_until_near_end(
            min(strides, math.ceil(IN_FLIGHT_S / max(estimate_s * stride, 1e-9)))
        )
        in_flight()
    clock.synchronise()
    length = time.perf_counter() - began
    step_times_s = tuple(interval / stride for interval in clock.intervals())
    return WindowTimes(length, strides * stride, step_times_s, pauses=pauses() - pauses_before)


def _timed(step: Step, clock: Clock, steps: int) -> float:
    clock.synchronise()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    clock.synchronise()
    return time.perf_counter() - began


def _flat(values: Sequence[float], wanted: int, tolerance: float) -> bool:
    return len(values) >= wanted and max(values) - min(values) <= tolerance * min(values)
