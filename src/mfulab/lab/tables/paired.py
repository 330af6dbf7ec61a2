"""Two commits measured in turn, A B B A: each run's ratio judged pair by pair, which the machine's drift cancels in."""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from mfulab.lab.tables import compare, replicates
from mfulab.timing.statistics import relative_half_width

Run = compare.Run
Pair = tuple[float | None, float | None]  # seconds of the old and of the new; None where a process had none
FEWEST_PAIRS = 2
RANKED = 8  # pairs from which on the interval needs no normal distribution
MOST_ROUNDS = 60
# Rounds after which a verdict may end a run. Each look at growing data may call an unchanged run different, so one
# before the last must hold with an interval that many times as wide (as Haybittle, 1971, and Peto, 1976, ask for more).
LOOKS = (1, 4, 8, 16, 32, MOST_ROUNDS)
EARLY = 1.3


def judge(
    pairs: Mapping[Run, Sequence[Pair]],
    reasons: Mapping[Run, str] | None = None,
    noticeable: float = compare.NOTICEABLE,
) -> list[compare.Compared]:
    """A verdict on each run from its ratio new ÷ old and the 95 % confidence interval of that (`ratio_of`).

    `pairs` are both times in seconds, measured in turn; a pair that lacks one does not count. `reasons` say why a run
    has no time; `noticeable` is the relative difference that matters.
    """
    both = {run: [(old, new) for old, new in several if old and new] for run, several in pairs.items()}
    ratios = {run: [new / old for old, new in several] for run, several in both.items()}
    several = [each for each in ratios.values() if len(each) > 1]
    usual = replicates.usual_variance([(statistics.variance(map(math.log, each)), len(each) - 1) for each in several])
    found = []
    for run in pairs:
        if not both[run]:
            because = (reasons or {}).get(run, "") or "no pair has both times"
            found.append(compare.Compared(*run, "not comparable", because=because))
            continue
        old, new = (statistics.median(times) for times in zip(*both[run], strict=True))
        if len(ratios[run]) < FEWEST_PAIRS:
            because = "one pair has no confidence interval: more rounds are needed"
            found.append(compare.Compared(*run, "ambiguous", old, new, ratios[run][0], because=because))
        else:
            ratio, *bounds = ratio_of(ratios[run], usual)
            found.append(compare.decided(run, old, new, ratio, (bounds[0], bounds[1]), noticeable))
    return found


def ratio_of(ratios: Sequence[float], usual: float | None = None) -> tuple[float, float, float]:
    """The ratio that two or more pairs give, and the ends of its 95 % interval.

    Hodges and Lehmann's (1963): the median of the mean logarithms of every two pairs; one pair in four may be far off.
    From RANKED pairs on the interval is Wilcoxon's of signed ranks; of fewer Student's, which borrows from `usual`, the
    variance of most runs' logarithms.
    """
    logarithms = np.log(ratios)
    count = len(logarithms)
    means = np.sort(np.add(*logarithms[np.array(np.triu_indices(count))]) / 2)
    ratio = float(np.exp(np.median(means)))
    if count >= RANKED:
        outside = _outside(count)
        return ratio, float(np.exp(means[outside])), float(np.exp(means[-1 - outside]))
    half = relative_half_width(ratios, usual, replicates.PRIOR_DEGREES)
    assert half is not None
    factor = math.exp(half * math.sqrt(2 / 3))  # of a median it is √(π/2)·s/√n, of this √(π/3)·s/√n
    return ratio, ratio / factor, ratio * factor


@cache
def _outside(count: int) -> int:
    """The number of means outside of the interval on either side: the signed ranks' 2.5 % quantile under no change."""
    sums = np.ones(1)
    for rank in range(1, count + 1):
        sums = np.pad(sums, (0, rank)) + np.pad(sums, (rank, 0))
    return int(np.searchsorted(np.cumsum(sums) / 2**count, 0.025, side="right")) - 1


def is_open(found: compare.Compared, noticeable: float) -> bool:
    """True for a run that further pairs may decide: as `judge` says, with the interval that an early look asks for."""
    if found.ratio is None or found.ratio_low is None or found.ratio_high is None:
        return found.verdict == "ambiguous"
    low, high = (found.ratio * (end / found.ratio) ** EARLY for end in (found.ratio_low, found.ratio_high))
    return compare.verdict_of(found.ratio, low, high, noticeable)[0] == "ambiguous"
