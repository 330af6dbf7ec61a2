"""Two things measured in turn, A B B A: the ratio judged pair by pair, which the machine's drift cancels in."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mfulab.core.replicates import turn
from mfulab.timing.statistics import PRIOR_DEGREES, Stats, relative_half_width, usual_variance

Run = tuple[str, str]  # measurement, name
Pair = tuple[float | None, float | None]  # seconds of the old and of the new; None where a process had none
NOTICEABLE = 0.02  # relative: times that are known to lie this close together are the same for every purpose
# Two one-sided tests at 5 % tell equivalence, each by the end of a 90 % interval (Schuirmann, 1987): 1.645 ÷ 1.96.
ONE_SIDED = 0.839
FEWEST_PAIRS = 2
RANKED = 8  # pairs from which on the interval needs no normal distribution
EXACT = 60  # pairs up to which the signed ranks' quantile is counted out
# Rounds after which a verdict may end a run. Each look at growing data may call an unchanged run different, so one
# before the last must hold with an interval that many times as wide (as Haybittle, 1971, and Peto, 1976, ask for more).
LOOKS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
EARLY = 1.3
MOST_PAIRS = 1000
SAMPLE_S = 0.02  # of a callable, repeated: far above what a clock resolves


@dataclass(frozen=True)
class Compared:
    """One run in both sets; times are None if a set lacks them, bounds also if a time has no interval."""

    step: str
    run: str
    verdict: str
    old_s: float | None = None
    new_s: float | None = None
    ratio: float | None = None  # new ÷ old: below 1 is faster
    ratio_low: float | None = None  # of its 95 % interval
    ratio_high: float | None = None
    detects_percent: float | None = None  # smallest slowdown that would have been called one, with bounds as wide
    because: str = ""


def gate(
    old: Callable[[], object],
    new: Callable[[], object],
    *,
    minutes: float = 1.0,
    noticeable: float = NOTICEABLE,
    sample_s: float = SAMPLE_S,
) -> Compared:
    """Compares two Python callables in turn, until there is a verdict or the minutes are over.

    Args:
        old: takes no argument, and returns when the work is done: one that uses a GPU must synchronise it.
        new: does what `old` does; a ratio above 1 says that it is slower.
        minutes: after which no pair is begun.
        noticeable: the relative difference that matters, 0.02 for 2 %.
        sample_s: seconds of one sample, in which a shorter callable is called several times.

    Returns the `verdict` (faster, slower, same or ambiguous), `old_s` and `new_s` a call, and `ratio` with the ends of
    the 95 % interval. `detects_percent` is the smallest slowdown that would have been called one.
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
    say: Callable[[str], object] = lambda _: None,
    name: str = "new against old",
) -> Compared:
    """Compares what `timed(0)` and `timed(1)` give, asked in turn as `in_rounds` does."""

    def pair(_: Run, swapped: bool) -> Pair:
        times = {side: timed(side) for side in ((1, 0) if swapped else (0, 1))}
        return times[0], times[1]

    (compared,) = in_rounds([("gate", name)], pair, {}, MOST_PAIRS, minutes, noticeable, say=say)
    return compared


def _calls(call: Callable[[], object], sample_s: float) -> int:
    """Calls that fill a sample, by the second one: the first may compile or fill caches."""
    call()
    began = time.perf_counter()
    call()
    return max(1, round(sample_s / max(time.perf_counter() - began, 1e-7)))


def in_rounds(
    runs: Sequence[Run],
    measure: Callable[[Run, bool], Pair],
    reasons: Mapping[Run, str],
    rounds: int,
    minutes: float,
    noticeable: float,
    now: Callable[[], float] = time.monotonic,
    say: Callable[[str], object] = lambda _: None,
) -> list[Compared]:
    """Verdicts on pairs measured in rounds, of runs that lack one; no pair begins that would end after the minutes.

    `measure` takes a run, and whether the new goes first; `now` tells seconds, and `say` gets a line a round.
    """
    pairs: dict[Run, list[Pair]] = {run: [] for run in runs}
    took_s, began, left = dict.fromkeys(runs, 0.0), now(), list(runs)
    compared = judge(pairs, reasons, noticeable)
    for number in range(rounds):
        spent = f"{len(left)} of {len(runs)} runs, {(now() - began) / 60:.1f} of {minutes:g} min"
        say(f"round {number + 1} of at most {rounds}: {spent}")
        is_late = True
        for run in sorted(left, key=lambda run: turn("/".join(run), number)):
            if (start := now()) - began + took_s[run] <= 60 * minutes:
                pairs[run].append(measure(run, bool(number % 2)))
                took_s[run], is_late = max(took_s[run], now() - start), False
        if not is_late and number + 1 < rounds and number + 1 not in LOOKS:
            continue
        late = dict.fromkeys((run for run in runs if not pairs[run]), "the minutes were over before its first pair")
        compared = judge(pairs, {**reasons, **late}, noticeable)
        # A run that cannot be measured stays so.
        lacking = [run for run in compared if run.verdict == "not comparable" and not number]
        left = [(run.step, run.run) for run in compared if run in lacking or is_open(run, noticeable)]
        if not left or is_late:
            break
    return compared


def judge(
    pairs: Mapping[Run, Sequence[Pair]], reasons: Mapping[Run, str] | None = None, noticeable: float = NOTICEABLE
) -> list[Compared]:
    """A verdict on each run from its ratio new ÷ old and the 95 % confidence interval of that (`ratio_of`).

    `pairs` are both times in seconds, measured in turn; a pair that lacks one does not count. `reasons` say why a run
    has no time; `noticeable` is the relative difference that matters.
    """
    both = {run: [(old, new) for old, new in several if old and new] for run, several in pairs.items()}
    ratios = {run: [new / old for old, new in several] for run, several in both.items()}
    logarithms = [[math.log(ratio) for ratio in pairs] for pairs in ratios.values() if len(pairs) > 1]
    usual = usual_variance([(statistics.variance(pairs), len(pairs) - 1) for pairs in logarithms])
    compared = []
    for run in pairs:
        if not both[run]:
            because = (reasons or {}).get(run) or "no pair has both times"
            compared.append(Compared(*run, "not comparable", because=because))
            continue
        old, new = (statistics.median(times) for times in zip(*both[run], strict=True))
        if len(ratios[run]) < FEWEST_PAIRS:
            because = "one pair has no confidence interval: more rounds are needed"
            compared.append(Compared(*run, "ambiguous", old, new, ratios[run][0], because=because))
        else:
            ratio, low, high = ratio_of(ratios[run], usual)
            compared.append(decided(run, old, new, ratio, (low, high), noticeable))
    return compared


def ratio_of(ratios: Sequence[float], usual: float | None = None) -> tuple[float, float, float]:
    """The ratio that two or more pairs give, and the ends of its 95 % interval.

    Hodges and Lehmann's (1963): the median of the mean logarithms of every two pairs; one pair in four may be far off.
    From RANKED pairs on the interval is Wilcoxon's of signed ranks; of fewer Student's, which borrows from `usual`, the
    variance of most runs' logarithms.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    count = len(logarithms)
    means = Stats((a + b) / 2 for place, a in enumerate(logarithms) for b in logarithms[place:])
    ratio = math.exp(means.median)
    if count >= RANKED:
        outside = _outside(count)
        return ratio, math.exp(means.values[outside]), math.exp(means.values[-1 - outside])
    half = relative_half_width(ratios, usual, PRIOR_DEGREES)
    assert half is not None
    factor = math.exp(half * math.sqrt(2 / 3))  # of a median it is √(π/2)·s/√n, of this √(π/3)·s/√n
    return ratio, ratio / factor, ratio * factor


@cache
def _outside(count: int) -> int:
    """The number of means outside of the interval on either side: the signed ranks' 2.5 % quantile under no change."""
    if count > EXACT:  # normal, with mean n(n+1)/4 and variance n(n+1)(2n+1)/24
        return int(count * (count + 1) / 4 - 1.96 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24) - 0.5)
    ways = [1]  # to reach each sum of the ranks so far
    for rank in range(1, count + 1):
        ways = [a + b for a, b in zip(ways + [0] * rank, [0] * rank + ways, strict=True)]
    below, outside = 0, -1
    while (below := below + ways[outside + 1]) * 40 <= 2**count:
        outside += 1
    return outside


def is_open(compared: Compared, noticeable: float) -> bool:
    """True for a run that further pairs may decide: as `judge` says, with the interval that an early look asks for."""
    ratio, ends = compared.ratio, (compared.ratio_low, compared.ratio_high)
    if ratio is None or None in ends:
        return compared.verdict == "ambiguous"
    low, high = (ratio * (end / ratio) ** EARLY for end in ends if end is not None)
    return verdict_of(ratio, low, high, noticeable)[0] == "ambiguous"


def decided(
    run: Run, old_s: float, new_s: float, ratio: float, bounds: tuple[float, float], noticeable: float
) -> Compared:
    """A run's verdict by the interval of its ratio, and the smallest change that would have had one."""
    says, because = verdict_of(ratio, *bounds, noticeable)
    detects = 100 * ((1 + noticeable) * ratio / bounds[0] - 1)
    return Compared(*run, says, old_s, new_s, ratio, *bounds, detects, because)


def verdict_of(ratio: float, low: float, high: float, noticeable: float = NOTICEABLE) -> tuple[str, str]:
    """(verdict, reason) of a ratio new ÷ old and its 95 % interval, as of two times."""
    if high < 1 / (1 + noticeable):
        return "faster", ""
    if low > 1 + noticeable:
        return "slower", ""
    if one_sided(ratio, low) >= 1 / (1 + noticeable) and one_sided(ratio, high) <= 1 + noticeable:
        return "same", ""
    return "ambiguous", "the confidence intervals allow both a difference and none"


def one_sided(ratio: float, end: float) -> float:
    """The end of the 90 % interval on the side of `end`, of the 95 % one: what a one-sided test at 5 % rests on."""
    return ratio * (end / ratio) ** ONE_SIDED
