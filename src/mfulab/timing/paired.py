"""Two things measured in turn, A B B A: the ratio judged pair by pair, which the machine's drift
cancels in."""

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
Pair = tuple[
    float | None, float | None
]  # seconds of the old and of the new; None where a process had none
# relative: times that are known to lie this close together are the same for every purpose
NOTICEABLE = 0.02
# Two one-sided tests at 5 % tell equivalence, each by the end of a 90 % interval (Schuirmann,
# 1987): 1.645 ÷ 1.96.
ONE_SIDED = 0.839
FEWEST_PAIRS = 2
RANKED = 8  # pairs from which on the interval needs no normal distribution
EXACT = 60  # pairs up to which the signed ranks' quantile is counted out
# Rounds after which a verdict may end a run. Each look at growing data may call an unchanged run
# different, so one before the last must hold with an interval that many times as wide (as
# Haybittle, 1971, and Peto, 1976, ask for more).
LOOKS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
EARLY = 1.3
MOST_PAIRS = 1000
SAMPLE_S = 0.02  # of a callable, repeated: far above what a clock resolves


# Of verdicts, where code is reviewed.
MARKS = {"slower": "❌", "ambiguous": "❔", "faster": "✅", "same": "✅", "not comparable": "➖"}


@dataclass(frozen=True)
class Compared:
    """One run in both sets; times are None if a set lacks them, bounds also if a time has no
    interval."""

    step: str
    run: str
    verdict: str
    old_s: float | None = None
    new_s: float | None = None
    ratio: float | None = None  # new ÷ old: below 1 is faster
    ratio_low: float | None = None  # of its 95 % interval
    ratio_high: float | None = None
    # smallest slowdown that would have been called one, with bounds as wide
    detects_percent: float | None = None
    because: Said | None = None  # why there is no verdict

    def row(self) -> dict[str, object]:
        """The fields by name; the reason in English, empty where there is none."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return row | {"because": str(self.because or "")}

    @property
    def answer(self) -> Answer:
        """The change of the time in %."""
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
    """Compares two Python callables in turn, until there is a verdict or the minutes are over.

    Args:
        old: takes no argument, and returns when the work is done: one that uses a GPU must
            synchronise it.
        new: does what `old` does; a ratio above 1 says that it is slower.
        minutes: after which no pair is begun.
        noticeable: the relative difference that matters, 0.02 for 2 %.
        sample_s: seconds of one sample, in which a shorter callable is called several
            times.

    Returns the `verdict` (faster, slower, same or ambiguous), `old_s` and `new_s` a call, and
    `ratio` with the ends of the 95 % interval. `detects_percent` is the smallest slowdown that
    would have been called one.
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
    reasons: Mapping[Run, Said],
    rounds: int,
    minutes: float,
    noticeable: float,
    now: Callable[[], float] = time.monotonic,
    say: Callable[[Said], object] = lambda _: None,
) -> list[Compared]:
    """Verdicts on pairs measured in rounds, of runs that lack one; no pair begins that would end
    after the minutes.

    `measure` takes a run, and whether the new goes first; `now` tells seconds, and `say` gets a
    line a round.
    """
    taken = _Rounds(runs, measure, 60 * minutes, now)
    left = list(runs)
    compared = judge(taken.pairs, reasons, noticeable)
    for number in range(rounds):
        counts: Numbers = {"left": len(left), "runs": len(runs), "rounds": rounds}
        stands = {"round": number + 1, "spent": taken.spent_s() / 60, "minutes": minutes}
        say(Said("paired_round", {**counts, **stands}))
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
    """Pairs that were measured so far, and the seconds that the longest of each run took."""

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
        """Measures a pair of each run for which there is time; says whether there was for any."""
        measured = False
        for run in sorted(runs, key=lambda run: turn("/".join(run), number)):
            start_s = self.spent_s()
            if start_s + self._took_s[run] <= self._most_s:
                self.pairs[run].append(self._measure(run, bool(number % 2)))
                self._took_s[run] = max(self._took_s[run], self.spent_s() - start_s)
                measured = True
        return measured


def _left(compared: Sequence[Compared], noticeable: float, *, is_first: bool) -> list[Run]:
    """Runs without a verdict. One that cannot be measured stays so after the first round."""
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
    """A verdict on each run from its ratio new ÷ old and the 95 % confidence interval of that
    (`ratio_of`).

    `pairs` are both times in seconds, measured in turn; a pair that lacks one does not count.
    `reasons` say why a run has no time; `noticeable` is the relative difference that matters.
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
    """The ratio that two or more pairs give, and the ends of its 95 % interval.

    Hodges and Lehmann's (1963): the median of the mean logarithms of every two pairs; one pair in
    four may be far off. From RANKED pairs on the interval is Wilcoxon's of signed ranks; of fewer
    Student's, which borrows from `usual`, the variance of most runs' logarithms.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    count = len(logarithms)
    means = Stats((a + b) / 2 for place, a in enumerate(logarithms) for b in logarithms[place:])
    ratio = math.exp(means.median)
    if count >= RANKED:
        outside = _outside(count)
        return ratio, math.exp(means.values[outside]), math.exp(means.values[-1 - outside])
    half = relative_half_width(ratios, usual)
    assert half is not None
    factor = math.exp(half * math.sqrt(2 / 3))  # of a median it is √(π/2)·s/√n, of this √(π/3)·s/√n
    return ratio, ratio / factor, ratio * factor


@cache
def _outside(count: int) -> int:
    """The number of means outside of the interval on either side: the signed ranks' 2.5 % quantile
    under no change."""
    if count > EXACT:  # normal, with mean n(n+1)/4 and variance n(n+1)(2n+1)/24
        return int(
            count * (count + 1) / 4
            - 1.96 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
            - 0.5
        )
    ways = [1]  # to reach each sum of the ranks so far
    for rank in range(1, count + 1):
        ways = [a + b for a, b in zip(ways + [0] * rank, [0] * rank + ways, strict=True)]
    below = 0
    outside = -1
    while (below := below + ways[outside + 1]) * 40 <= 2**count:
        outside += 1
    return outside


def is_open(compared: Compared, noticeable: float) -> bool:
    """True for a run that further pairs may decide: as `judge` says, with the interval that an
    early look asks for."""
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
    """A run's verdict by the interval of its ratio, and the smallest change that would have had
    one."""
    says, because = verdict_of(ratio, *bounds, noticeable)
    detects = 100 * ((1 + noticeable) * ratio / bounds[0] - 1)
    return Compared(*run, says, old_s, new_s, ratio, *bounds, detects, because)


def verdict_of(
    ratio: float, low: float, high: float, noticeable: float = NOTICEABLE
) -> tuple[str, Said | None]:
    """(verdict, reason) of a ratio new ÷ old and its 95 % interval, as of two times."""
    if high < 1 / (1 + noticeable):
        return "faster", None
    if low > 1 + noticeable:
        return "slower", None
    if one_sided(ratio, low) >= 1 / (1 + noticeable) and one_sided(ratio, high) <= 1 + noticeable:
        return "same", None
    return "ambiguous", Said("intervals_allow_both")


def one_sided(ratio: float, end: float) -> float:
    """The end of the 90 % interval on the side of `end`, of the 95 % one: what a one-sided test at
    5 % rests on."""
    return ratio * (end / ratio) ** ONE_SIDED
