"""Times short calls, hot and cold, until their spread settles. Contestants are interleaved, so that
drift affects all alike. The stopping rule is nvbench's: noise below 0.5 %, or no longer falling. A
hot repetition is a group of calls that is long enough for its clock. A cold one is a single call
after flushing the caches."""

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from mfulab.timing.probe import UNKNOWN, Best, State, Watch, best_of, is_disturbed
from mfulab.timing.statistics import Stats
from mfulab.timing.statistics import undisturbed as undisturbed_time

Call = Callable[[], Any]
# Each library has its own threads, which spin for a while when they run out of work: OpenBLAS's for
# 0.1 s, OpenMP's for some milliseconds. They occupy the cores meanwhile, and the next library runs
# ten times slower.
LONGEST_SPIN_S = 0.3
AS_USUAL = 1.25


Temperature = Literal["hot", "cold"]


class Timed(NamedTuple):
    """Mean seconds per call over some calls, and the device's clock meanwhile. `held` is False if a
    launch may have waited for the host."""

    time_s: float
    calls: int
    clock_mhz: float | None = None
    held: bool = True


class HostTimer:
    """Times calls with `time.perf_counter`. Flushes caches by writing twice the size of the
    last-level cache."""

    resolution_s = 5e-3  # a group of calls shorter than this is not worth timing
    most_calls = 50_000  # per group: fills it with calls of 0.1 µs; there is no queue to overflow

    def __init__(self, last_level_cache_bytes: int | None) -> None:
        self._scratch: Any = np.zeros(2 * (last_level_cache_bytes or 32 << 20), np.uint8)

    def time(self, call: Call, calls: int) -> Timed:
        """Times `calls` back-to-back calls, or fewer if the device's queue cannot be kept full."""
        started = time.perf_counter()
        for _ in range(calls):
            call()
        # Without the clock: a virtual machine shows its nominal one, not the actual one.
        return Timed((time.perf_counter() - started) / calls, calls)

    def cold(self, call: Call) -> Timed:
        """Times one call after flushing the caches."""
        self._scratch += 1
        return self.time(call, 1)

    def settle(self, call: Call, calls: int, best_s: float) -> None:
        """Repeats the call until it runs undisturbed by threads of other libraries. `best_s` is its
        best time so far."""
        if best_s > LONGEST_SPIN_S:
            return  # spinning threads are a small part of such a call
        deadline = time.perf_counter() + LONGEST_SPIN_S
        while self.time(call, calls).time_s > AS_USUAL * best_s and time.perf_counter() < deadline:
            pass


@dataclass(frozen=True)
class Repetition:
    """One timed repetition; `time_s` is in seconds per call."""

    implementation: str
    temperature: str  # "hot" or "cold"
    round: int
    time_s: float
    calls: int
    clock_mhz: float | None
    held: bool = True
    # the machine was slow around this round, or other processes computed
    disturbed: bool = False


class Interleaved(NamedTuple):
    """Repetitions that count, states of the machine between rounds, and the number of rounds that
    do not count."""

    repetitions: list[Repetition]
    states: list[State]
    repeated: int


@dataclass
class Settling:
    """Stopping rule of nvbench: noise (relative standard deviation) below `noise`, or its history
    flat to within `flat`."""

    noise: float = 0.005
    flat: float = 0.05
    history: int = 10
    least: int = 5
    _times: list[float] = field(default_factory=list)
    _noises: list[float] = field(default_factory=list)

    def add(self, time_s: float) -> None:
        """Adds the time of one repetition in seconds."""
        self._times.append(time_s)
        if len(self._times) > 1:
            self._noises.append(statistics.stdev(self._times) / statistics.fmean(self._times))

    def is_precise(self, precision: float | None) -> bool:
        """True if the relative standard error of the mean is at most `precision`, or `precision` is
        None."""
        if precision is None:
            return True
        return len(self._times) >= self.least and self._noises[-1] <= precision * math.sqrt(
            len(self._times)
        )

    @property
    def settled(self) -> bool:
        if len(self._times) < self.least:
            return False
        if self._noises[-1] < self.noise:
            return True
        recent = self._noises[-self.history :]
        return len(recent) == self.history and statistics.stdev(recent) < self.flat * recent[-1]


@dataclass(frozen=True)
class Budget:
    """Limits of a measurement, in seconds of wall time over all contestants."""

    warm_up_s: float
    time_s: float  # maximum, unless `least_rounds` take longer; ends earlier if all have settled
    limit_s: float  # maximum for `least_rounds`, too
    least_rounds: int = 5
    # extra time if too few rounds were undisturbed, or a mean is not precise yet
    patience_s: float = 0.0
    precision: float | None = None  # required relative standard error of each mean


class Contestant:
    """Call that is timed against others: warmed up, with its calls per repetition and the trends of
    its hot and cold times."""

    def __init__(self, name: str, call: Call, timer: HostTimer, warm_up_s: float) -> None:
        self._name = name
        self._call = call
        self._timer = timer
        self._calls, self._best_s = _warm_up(call, timer, warm_up_s)
        self.trends: dict[Temperature, Settling] = {"hot": Settling(), "cold": Settling()}

    def repeat(self, round_number: int) -> list[Repetition]:
        """Times one hot and one cold repetition."""
        self._timer.settle(self._call, self._calls, self._best_s)
        hot = self._noted("hot", round_number, self._timer.time(self._call, self._calls))
        cold = self._noted("cold", round_number, self._timer.cold(self._call))
        return [hot, cold]

    def _noted(self, temperature: Temperature, round_number: int, timed: Timed) -> Repetition:
        self._best_s = min(self._best_s, timed.time_s)
        self.trends[temperature].add(timed.time_s)
        return Repetition(self._name, temperature, round_number, *timed)


def interleave(
    contestants: Mapping[str, Call],
    timer: HostTimer,
    budget: Budget,
    refresh: Callable[[], None] = lambda: None,
    watch: Watch | None = None,
    best: Best = UNKNOWN,
) -> Interleaved:
    """Warms up every contestant, then times one hot and one cold repetition of each per round,
    until all settle. Every other round runs in reverse order: at a power limit the first contestant
    was up to 11 % faster on an H100. `refresh` sets new inputs before each round, untimed.
    Disturbed rounds do not count if `least_rounds` others were timed."""
    share_s = budget.warm_up_s / len(contestants)
    warm = [Contestant(name, call, timer, share_s) for name, call in contestants.items()]
    trends = [trend for contestant in warm for trend in contestant.trends.values()]
    repetitions: list[Repetition] = []
    states = [watch()] if watch else []
    started = time.perf_counter()
    finished = 0
    while True:
        refresh()
        for contestant in reversed(warm) if finished % 2 else warm:
            repetitions += contestant.repeat(finished)
        finished += 1
        if watch is not None:
            states.append(watch())
        elapsed = time.perf_counter() - started
        if not _may_end(trends, budget, elapsed, finished, len(contestants)):
            continue
        disturbed = disturbed_rounds(states, best_of(states, best))
        is_quiet = finished - len(disturbed) >= budget.least_rounds
        is_over = elapsed > min(budget.limit_s, budget.time_s + budget.patience_s)
        if is_over or (is_quiet and _are_precise(warm, budget.precision)):
            return _without(disturbed, repetitions, states, budget.least_rounds)


def _are_precise(contestants: Iterable[Contestant], precision: float | None) -> bool:
    return all(one.trends["hot"].is_precise(precision) for one in contestants)


def _without(
    disturbed: set[int], repetitions: list[Repetition], states: list[State], least_rounds: int
) -> Interleaved:
    kept = undisturbed(repetitions, disturbed, least_rounds)
    repeated = len(disturbed) if len(kept) < len(repetitions) else 0
    return Interleaved(drop_slow_clocks(kept), states, repeated)


def _may_end(
    trends: Collection[Settling], budget: Budget, elapsed: float, finished: int, contestants: int
) -> bool:
    """True once all have settled or time is over, after enough rounds in a multiple of the number
    of contestants. Always True beyond the limit."""
    if elapsed > budget.limit_s:
        return True
    if finished % contestants or finished < budget.least_rounds:
        return False
    return elapsed > budget.time_s or all(trend.settled for trend in trends)


def disturbed_rounds(states: Sequence[State], best: Best) -> set[int]:
    """Rounds during which the machine was disturbed. `states` has one more entry than there are
    rounds; identical entries count as one probe."""
    disturbed: set[int] = set()
    first = 0
    for last in range(1, len(states)):
        if states[last] is not states[first] or last == len(states) - 1:
            if is_disturbed(states[first], states[last], best):
                disturbed.update(range(first, last))
            first = last
    return disturbed


def undisturbed(
    repetitions: Sequence[Repetition], disturbed: set[int], least_rounds: int
) -> list[Repetition]:
    """Repetitions of undisturbed rounds, if there are at least `least_rounds` such rounds.
    Otherwise all, with disturbed ones marked."""
    kept = [repetition for repetition in repetitions if repetition.round not in disturbed]
    if len({repetition.round for repetition in kept}) >= least_rounds:
        return kept
    return [
        replace(repetition, disturbed=repetition.round in disturbed) for repetition in repetitions
    ]


def _warm_up(call: Call, timer: HostTimer, warm_up_s: float) -> tuple[int, float]:
    """Returns the number of calls in one hot repetition, and the best seconds per call."""
    started = time.perf_counter()
    best_s = timer.time(call, 1).time_s
    while time.perf_counter() - started < warm_up_s:
        best_s = min(best_s, timer.time(call, 1).time_s)
    if (calls := _repetition(timer, best_s)) > 1:
        best_s = min(best_s, timer.time(call, calls).time_s)
    return _repetition(timer, best_s), best_s


def _repetition(timer: HostTimer, call_s: float) -> int:
    return max(1, min(timer.most_calls, math.ceil(timer.resolution_s / call_s)))


def drop_slow_clocks(repetitions: Sequence[Repetition]) -> list[Repetition]:
    """Drops repetitions whose clock was below three quarters of the median clock. Keeps all if no
    clock was read."""
    clocks = [repetition.clock_mhz for repetition in repetitions if repetition.clock_mhz]
    if not clocks:
        return list(repetitions)
    least = 0.75 * statistics.median(clocks)
    return [
        repetition
        for repetition in repetitions
        if repetition.clock_mhz is None or repetition.clock_mhz >= least
    ]


@dataclass(frozen=True)
class Summary:
    """Median, undisturbed time and interquartile range in seconds. None if there are too few
    repetitions."""

    median_s: float | None
    low_s: float | None
    iqr_s: float | None
    count: int


def summarise(repetitions: Sequence[Repetition], implementation: str, temperature: str) -> Summary:
    """Summarises one implementation's hot or cold repetitions, in seconds."""
    times = [
        r.time_s
        for r in repetitions
        if (r.implementation, r.temperature) == (implementation, temperature)
    ]
    if not times:
        return Summary(None, None, None, 0)
    stats = Stats(times)
    iqr_s = stats.percentile(75) - stats.percentile(25) if len(times) > 1 else None
    return Summary(stats.median, undisturbed_time(times), iqr_s, len(times))
