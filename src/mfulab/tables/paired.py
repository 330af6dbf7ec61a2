"""Two commits measured in turn, A B B A: each run's ratio judged pair by pair, which the machine's drift cancels in."""

import math
import statistics
from collections.abc import Mapping, Sequence

from mfulab.tables import compare, replicates
from mfulab.timing.statistics import relative_half_width

Run = tuple[str, str]  # step, name
Pair = tuple[float | None, float | None]  # seconds of the old and of the new; None where a process had none
FEWEST_PAIRS = 2
MOST_ROUNDS = 10  # after each of which a verdict may end a run: more looks would call more unchanged runs different


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
    usual = replicates.usual_variance(
        [
            (statistics.variance(map(math.log, several)), len(several) - 1)
            for several in ratios.values()
            if len(several) > 1
        ]
    )
    return [_one(run, both[run], ratios[run], usual, (reasons or {}).get(run, ""), noticeable) for run in pairs]


def _one(
    run: Run,
    pairs: Sequence[tuple[float, float]],
    ratios: Sequence[float],
    usual: float | None,
    reason: str,
    noticeable: float,
) -> compare.Compared:
    if not pairs:
        return compare.Compared(*run, "not comparable", because=reason or "no pair has both times")
    old, new = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(ratios)
    if len(ratios) < FEWEST_PAIRS:
        because = "one pair has no confidence interval: more rounds are needed"
        return compare.Compared(*run, "ambiguous", old, new, ratio, because=because)
    half = relative_half_width(ratios, usual, replicates.PRIOR_DEGREES)
    assert half is not None
    bounds = ratio * math.exp(-half), ratio * math.exp(half)
    return compare.decided(run, old, new, ratio, bounds, noticeable)
