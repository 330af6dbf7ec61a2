"""Repeatability of a machine's numbers: runs measured again (`experiment=repeat`), each judged like another commit."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mfulab.lab.tables import compare, replicates
from mfulab.timing.statistics import fast_variance, undisturbed, usual_variance


@dataclass(frozen=True)
class Trust:
    """Findings of repeated measurements of a machine; shares and spreads in percent, None if nothing was repeated."""

    runs: int  # that two processes or more measured
    spread_percent: float | None = None  # usual standard deviation between processes; None with fewer than eight runs
    measurements: int = 0  # that runs of many processes hold
    size: int = 0  # processes of each of these
    covered_percent: float | None = None  # of their intervals, those that contain the undisturbed time of all processes
    verdicts: int = 0  # pairs of measurements that were compared, all of unchanged code
    false_percent: float | None = None  # pairs that were called faster or slower


def trust(runs: Sequence[Sequence[float]]) -> Trust:
    """The trust that the processes' times of each run of one machine deserve."""
    several = [list(times) for times in runs if len(times) > 1]
    usual = usual_variance([fast_variance(times) for times in several])
    known = Trust(len(several), None if usual is None else 100 * math.sqrt(usual))
    split = list(filter(None, map(replicates.measurements, several)))
    if not split:
        return known
    # Of each turn the usual spread is known from that turn alone, as if it had been a sweep.
    turns = itertools.zip_longest(*split)
    usuals = [usual_variance([fast_variance(each) for each in turn if each]) for turn in turns]
    covered, changed = [], []
    for measurements in split:
        intervals = []
        for times, usual in zip(measurements, usuals, strict=False):
            row = {"status": "ok", "time_s": undisturbed(times), **replicates.interval_columns(times, usual)}
            if found := compare.interval(row):
                intervals.append(found)
        middle = undisturbed(itertools.chain(*measurements))
        covered += [each.low_s <= middle <= each.high_s for each in intervals]
        verdicts = (compare.verdict(*pair)[0] for pair in itertools.combinations(intervals, 2))
        changed += [verdict in ("faster", "slower") for verdict in verdicts]
    return replace(
        known,
        measurements=len(covered),
        size=len(split[0][0]),
        covered_percent=100 * sum(covered) / len(covered),
        verdicts=len(changed),
        false_percent=100 * sum(changed) / len(changed),
    )
