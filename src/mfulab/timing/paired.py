"""Measures two things in turn (A B B A). Comparing the ratio of each pair cancels drift of the
machine."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache

from mfulab.core.answer import Answer, of_change
from mfulab.core.replicates import turn
from mfulab.core.said import Numbers, Said
from mfulab.timing.statistics import Stats, relative_half_width, usual_variance

Run = tuple[str, str]  # measurement, name
# seconds of the old and the new version; None if a process has no time
Pair = tuple[float | None, float | None]
# relative difference below which times count as the same
NOTICEABLE = 0.02
# Equivalence is tested by two one-sided tests at 5 %, each at an end of the 90 % interval
# (Schuirmann, 1987). The factor is 1.645 ÷ 1.96.
ONE_SIDED = 0.839
FEWEST_PAIRS = 2
RANKED = 8  # pairs from which on the interval assumes no normal distribution
EXACT = 60  # pairs up to which the quantile of the signed ranks is exact
# Rounds after which a verdict may end a run. Each look at growing data may call an unchanged run
# different. So a verdict before the last look must also hold with an interval EARLY times as wide
# (Haybittle, 1971, and Peto, 1976, require even more).
LOOKS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
EARLY = 1.3
MOST_PAIRS = 1000
SAMPLE_S = 0.02  # of a repeated callable: far above the clock's resolution


# Marks of verdicts in comments on code reviews.
MARKS = {"slower": "❌", "ambiguous": "❔", "faster": "✅", "same": "✅", "not comparable": "➖"}


@dataclass(frozen=True)
class Compared:
    """Comparison of one run in two sets. Times are None if a set lacks them; bounds also if there
    is no interval."""

    step: str
    run: str
    verdict: str
    old_s: float | None = None
    new_s: float | None = None
    ratio: float | None = None  # new ÷ old: below 1 is faster
    ratio_low: float | None = None  # end of the 95 % interval
    ratio_high: float | None = None
    # smallest slowdown that would have been detected with an interval as wide
    detects_percent: float | None = None
    because: Said | None = None  # why there is no verdict

    def row(self) -> dict[str, object]:
        """Fields by name, with the reason in English, or empty if there is none."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return row | {"because": str(self.because or "")}

    @property
    def answer(self) -> Answer:
        """Relative change of the time, in percent."""
        because: dict[str, float | str | None] = {"detects_percent": self.detects_percent}
        if self.because:
            because["because"] = str(self.because)
        return of_change(self.ratio, self.verdict, because, old=self.old_s)


def gate(
    old: Callable[[], object],
    new: Callable[[], object],
    *,
    minutes: float = 1.0,
    noticeable: float = NOTICEABLE,
    sample_s: float = SAMPLE_S,
) -> Compared:
    """Compares two Python callables, called in turn, until there is a verdict or time is over.

    Args:
        old: takes no arguments, and returns when the work is done. If it uses a GPU, it must
            synchronise.
        new: does the same work as `old`. A ratio above 1 means that it is slower.
        minutes: no pair begins after this time.
        noticeable: relative difference that matters, 0.02 for 2 %.
        sample_s: seconds per sample. A shorter callable is called several times.

    Returns the `verdict` (faster, slower, same or ambiguous), seconds per call as `old_s` and
    `new_s`, and `ratio` with the ends of its 95 % interval. `detects_percent` is the smallest
    slowdown that would have been detected.
    >>> gate(lambda: sum(range(2000)), lambda: sum(range(4000)), minutes=0.1).verdict
    'slower'
    """
    sides = [(call, _calls(call, sample_s)) for call in (old, new)]

    def timed(side: int) -> float:
        call, calls = sides[side]
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls

    return in_turn(timed, minutes, noticeable)


def in_turn(
    timed: Callable[[int], float],
    minutes: float,
    noticeable: float,
    say: Callable[[Said], object] = lambda _: None,
    name: str = "new against old",
) -> Compared:
    """Compares the times returned by `timed(0)` and `timed(1)`, called alternately as in
    `in_rounds`."""

    def pair(_: Run, swapped: bool) -> Pair:
        if swapped:
            new_s = timed(1)
            return timed(0), new_s
        old_s = timed(0)
        return old_s, timed(1)

    (compared,) = in_rounds([("gate", name)], pair, {}, MOST_PAIRS, minutes, noticeable, say=say)
    return compared


def _calls(call: Callable[[], object], sample_s: float) -> int:
    """Number of calls that fill a sample, judged by the second call. The first may compile or fill
    caches."""
    call()
    began = time.perf_counter()
    call()
    return max(1, round(sample_s / max(time.perf_counter() - began, 1e-7)))


def in_rounds(
    runs: Sequence[Run],
    measure: Callable[[Run, bool], Pair],
    reasons: Mapping[Run, Said],
    rounds: int,
    minutes: float,
    noticeable: float,
    now: Callable[[], float] = time.monotonic,
    say: Callable[[Said], object] = lambda _: None,
) -> list[Compared]:
    """Measures runs in rounds of pairs until each has a verdict. Starts no pair that would end
    after `minutes`.

    `measure` takes a run, and whether the new version goes first. `now` is a clock in seconds, and
    `say` receives one line per round.
    """
    taken = _Rounds(runs, measure, 60 * minutes, now)
    left = list(runs)
    compared = judge(taken.pairs, reasons, noticeable)
    for number in range(rounds):
        counts: Numbers = {"left": len(left), "runs": len(runs), "rounds": rounds}
        stands = {"round": number + 1, "spent": taken.spent_s() / 60, "minutes": minutes}
        say(Said("paired_round", **counts, **stands))
        is_late = not taken.round(left, number)
        is_look = number + 1 == rounds or number + 1 in LOOKS
        if not (is_late or is_look):
            continue
        unmeasured = [run for run in runs if not taken.pairs[run]]
        late = dict.fromkeys(unmeasured, Said("no_time_for_a_pair"))
        compared = judge(taken.pairs, {**reasons, **late}, noticeable)
        left = _left(compared, noticeable, is_first=number == 0)
        if not left or is_late:
            break
    return compared


class _Rounds:
    """Pairs measured so far, and the longest duration of a pair of each run."""

    def __init__(
        self,
        runs: Sequence[Run],
        measure: Callable[[Run, bool], Pair],
        most_s: float,
        now: Callable[[], float],
    ) -> None:
        self.pairs: dict[Run, list[Pair]] = {run: [] for run in runs}
        self._took_s = dict.fromkeys(runs, 0.0)
        self._measure = measure
        self._most_s = most_s
        self._now = now
        self._began = now()

    def spent_s(self) -> float:
        """Seconds since the first round began."""
        return self._now() - self._began

    def round(self, runs: Sequence[Run], number: int) -> bool:
        """Measures one pair of each run for which there is time. Returns False if there was time
        for none."""
        measured = False
        for run in sorted(runs, key=lambda run: turn("/".join(run), number)):
            start_s = self.spent_s()
            if start_s + self._took_s[run] <= self._most_s:
                self.pairs[run].append(self._measure(run, bool(number % 2)))
                self._took_s[run] = max(self._took_s[run], self.spent_s() - start_s)
                measured = True
        return measured


def _left(compared: Sequence[Compared], noticeable: float, *, is_first: bool) -> list[Run]:
    """Runs that still need a verdict. Runs that cannot be compared are retried only after the first
    round."""
    left = list[Run]()
    for outcome in compared:
        is_lacking = outcome.verdict == "not comparable" and is_first
        if is_lacking or is_open(outcome, noticeable):
            left.append((outcome.step, outcome.run))
    return left


def judge(
    pairs: Mapping[Run, Sequence[Pair]],
    reasons: Mapping[Run, Said] | None = None,
    noticeable: float = NOTICEABLE,
) -> list[Compared]:
    """Verdict on each run, from its ratio new ÷ old and the 95 % confidence interval of `ratio_of`.

    `pairs` holds both times in seconds, measured in turn; incomplete pairs do not count. `reasons`
    say why a run has no times; `noticeable` is the relative difference that matters.
    """
    both: dict[Run, list[tuple[float, float]]] = {}
    spreads = []
    for run, several in pairs.items():
        both[run] = [(old, new) for old, new in several if old and new]
        if len(both[run]) > 1:
            logarithms = [math.log(new / old) for old, new in both[run]]
            spreads.append((statistics.variance(logarithms), len(logarithms) - 1))
    usual = usual_variance(spreads)
    compared = []
    for run, measured in both.items():
        if measured:
            compared.append(_judged(run, measured, usual, noticeable))
        else:
            because = (reasons or {}).get(run) or Said("no_whole_pair")
            compared.append(Compared(*run, "not comparable", because=because))
    return compared


def _judged(
    run: Run, measured: Sequence[tuple[float, float]], usual: float | None, noticeable: float
) -> Compared:
    old = statistics.median(old for old, _ in measured)
    new = statistics.median(new for _, new in measured)
    ratios = [new / old for old, new in measured]
    if len(ratios) < FEWEST_PAIRS:
        because = Said("one_pair_no_interval")
        return Compared(*run, "ambiguous", old, new, ratios[0], because=because)
    ratio, low, high = ratio_of(ratios, usual)
    return decided(run, old, new, ratio, (low, high), noticeable)


def ratio_of(ratios: Sequence[float], usual: float | None = None) -> tuple[float, float, float]:
    """Returns the estimated ratio of two or more pairs, and the ends of its 95 % interval.

    The estimate is that of Hodges and Lehmann (1963): the median of the means of every two
    logarithms. It tolerates outliers in up to a quarter of the pairs. From RANKED pairs on, the
    interval is Wilcoxon's signed-rank interval. With fewer it is Student's, with `usual`, the
    typical variance of the logarithms of other runs, as prior.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    count = len(logarithms)
    pairs = itertools.combinations_with_replacement(logarithms, 2)
    means = Stats((a + b) / 2 for a, b in pairs)
    ratio = math.exp(means.median)
    if count >= RANKED:
        outside = _outside(count)
        return ratio, math.exp(means.values[outside]), math.exp(means.values[-1 - outside])
    half = relative_half_width(ratios, usual)
    assert half is not None
    # the median's standard error is √(π/2)·s/√n, this estimator's √(π/3)·s/√n
    factor = math.exp(half * math.sqrt(2 / 3))
    return ratio, ratio / factor, ratio * factor


@cache
def _outside(count: int) -> int:
    """Number of means outside the interval on each side: the 2.5 % quantile of the signed-rank sum
    under no change."""
    if count > EXACT:  # normal, with mean n(n+1)/4 and variance n(n+1)(2n+1)/24
        mean = count * (count + 1) / 4
        variance = count * (count + 1) * (2 * count + 1) / 24
        return int(mean - 1.96 * math.sqrt(variance) - 0.5)
    ways = [1]  # number of ways to reach each sum of the ranks so far
    for rank in range(1, count + 1):
        ways = [a + b for a, b in zip(ways + [0] * rank, [0] * rank + ways, strict=True)]
    outside = -1
    below = ways[0]
    while below * 40 <= 2**count:
        outside += 1
        below += ways[outside + 1]
    return outside


def is_open(compared: Compared, noticeable: float) -> bool:
    """True if further pairs may decide a run. Uses the wider interval that early looks require."""
    ratio = compared.ratio
    ends = (compared.ratio_low, compared.ratio_high)
    if ratio is None or None in ends:
        return compared.verdict == "ambiguous"
    low, high = (ratio * (end / ratio) ** EARLY for end in ends if end is not None)
    return verdict_of(ratio, low, high, noticeable)[0] == "ambiguous"


def decided(
    run: Run,
    old_s: float,
    new_s: float,
    ratio: float,
    bounds: tuple[float, float],
    noticeable: float,
) -> Compared:
    """Verdict from a ratio and its interval, and the smallest slowdown that would have been
    detected."""
    says, because = verdict_of(ratio, *bounds, noticeable)
    detects = 100 * ((1 + noticeable) * ratio / bounds[0] - 1)
    return Compared(*run, says, old_s, new_s, ratio, *bounds, detects, because)


def verdict_of(
    ratio: float, low: float, high: float, noticeable: float = NOTICEABLE
) -> tuple[str, Said | None]:
    """Returns (verdict, reason) for a ratio new ÷ old of two times and its 95 % interval."""
    if high < 1 / (1 + noticeable):
        return "faster", None
    if low > 1 + noticeable:
        return "slower", None
    if one_sided(ratio, low) >= 1 / (1 + noticeable) and one_sided(ratio, high) <= 1 + noticeable:
        return "same", None
    return "ambiguous", Said("intervals_allow_both")


def one_sided(ratio: float, end: float) -> float:
    """End of the 90 % interval, from the `end` of the 95 % interval on the same side. One-sided
    tests at 5 % use it."""
    return ratio * (end / ratio) ** ONE_SIDED
