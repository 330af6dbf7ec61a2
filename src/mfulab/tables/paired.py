"""Two commits measured in turn, A B B A: each run's ratio judged pair by pair, which the machine's drift cancels in."""

import math
import statistics
from collections.abc import Mapping, Sequence

from mfulab.tables import compare, replicates
from mfulab.timing.statistics import relative_half_width

Run = tuple[str, str]  # step, name
Pair = tuple[float | None, float | None]  # seconds of the old and of the new; None where a process had none
FEWEST_PAIRS = 2
MOST_ROUNDS = 60
# Rounds after which a verdict may end a run: each look at growing data may call an unchanged run different.
LOOKS = (1, 2, 4, 8, 16, 32, MOST_ROUNDS)


def judge(
    pairs: Mapping[Run, Sequence[Pair]],
    reasons: Mapping[Run, str] | None = None,
    noticeable: float = compare.NOTICEABLE,
) -> list[compare.Compared]:
    """A verdict on each run from the 95 % confidence interval of its ratio new ÷ old, the median over its pairs.

    Pairs of which one has no time do not count. As the time of a run between processes, a ratio between pairs borrows
    from the spread that most runs' ratios have.

    Args:
        pairs: both times of each pair, measured one after the other.
        reasons: why runs have no time, in words.
        noticeable: the relative difference that matters.
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
        ratio, half = statistics.median(ratios[run]), None
        if len(ratios[run]) >= FEWEST_PAIRS:
            half = relative_half_width(ratios[run], usual, replicates.PRIOR_DEGREES)
        if half is None:
            because = "one pair has no confidence interval: more rounds are needed"
            found.append(compare.Compared(*run, "ambiguous", old, new, ratio, because=because))
        else:
            bounds = ratio * math.exp(-half), ratio * math.exp(half)
            found.append(compare.decided(run, old, new, ratio, bounds, noticeable))
    return found
