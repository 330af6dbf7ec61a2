"""How far a machine's numbers repeat: the same runs measured several times, judged as if each time were another commit.

A run of many processes holds several measurements, apart in time: its first processes, the next ones, and so on. Of
each the interval is made as for any run; all of them together say what is true. `experiment=repeat` has enough.
"""

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mfulab.tables import compare, replicates

Times = Sequence[float]


@dataclass(frozen=True)
class Trust:
    """What repeated measurements of one machine say; shares and spreads in percent, None where nothing was repeated.

    Attributes:
        runs: runs that two processes or more measured.
        spread_percent: the usual standard deviation between processes, relative; None with fewer than eight runs.
        measurements: measurements that runs of many processes hold, and `size` the processes of each.
        covered_percent: intervals of these that contain the median of all processes.
        verdicts: pairs of them that were compared, all of unchanged code.
        false_percent: pairs that were called faster or slower.
        drift_percent: standard deviation between measurements beyond what their intervals expect.
    """

    runs: int
    spread_percent: float | None = None
    measurements: int = 0
    size: int = 0
    covered_percent: float | None = None
    verdicts: int = 0
    false_percent: float | None = None
    drift_percent: float | None = None


def times_of(row: Mapping[str, Any]) -> list[float]:
    """Medians of the processes that measured a merged row, in seconds and in their order; none where not kept."""
    try:
        return [float(value) for value in json.loads(row.get("process_times_s") or "[]") if value > 0]
    except (TypeError, ValueError):
        return []


def size_of(processes: int) -> int:
    """Processes of one measurement, so that a run holds two at least: three, or two of four or five; 0 below."""
    return 3 if processes >= 6 else 2 if processes >= 4 else 0


def trust(runs: Sequence[Times]) -> Trust:
    """The trust that the processes' times of each run of one machine deserve."""
    several = [list(times) for times in runs if len(times) > 1]
    usual = replicates.usual_variance([_log_variance(times) for times in several])
    known = Trust(len(several), None if usual is None else 100 * math.sqrt(usual))
    split = [_split(times) for times in several if size_of(len(times))]
    if not split:
        return known
    covered, told = [], []
    for measurements in _by_turn(split):
        for times, interval in zip(split, measurements, strict=True):
            covered += [each.low_s <= statistics.median(itertools.chain(*times)) <= each.high_s for each in interval]
            told += [compare.verdict(*pair)[0] for pair in itertools.combinations(interval, 2)]
    return Trust(
        len(several),
        known.spread_percent,
        len(covered),
        len(split[0][0]),
        _percent(covered),
        len(told),
        _percent([verdict in ("faster", "slower") for verdict in told]),
        100 * drift(runs),
    )


def drift(runs: Sequence[Times]) -> float:
    """Standard deviation of logarithms between measurements, beyond what the spread of their processes makes them vary.

    0 where nothing was measured often enough to tell, or where nothing is beyond.
    """
    excess = []
    for times in runs:
        if not size_of(len(times)):
            continue
        measurements = _split(times)
        seen = statistics.variance([math.log(statistics.median(each)) for each in measurements])
        inside = statistics.fmean(statistics.variance(map(math.log, each)) for each in measurements)
        excess.append(seen - math.pi / 2 * inside / len(measurements[0]))
    # A mean: variances of few measurements are skewed, and their median lies below what they estimate.
    return math.sqrt(max(0.0, statistics.fmean(excess))) if len(excess) >= replicates.FEWEST_RUNS else 0.0


def _split(times: Times) -> list[list[float]]:
    size = size_of(len(times))
    return [list(times[at : at + size]) for at in range(0, len(times) - size + 1, size)]


def _by_turn(split: Sequence[Sequence[Times]]) -> list[list[list[compare.Interval]]]:
    """The intervals of each run's measurements; a turn's usual spread is known from that turn alone."""
    turns = max(map(len, split))
    usual = []
    for turn in range(turns):
        usual.append(replicates.usual_variance([_log_variance(each[turn]) for each in split if len(each) > turn]))
    return [[[_interval(times, usual[turn]) for turn, times in enumerate(each)] for each in split]]


def _interval(times: Times, usual: float | None) -> compare.Interval:
    columns = replicates.interval_columns(times, usual)
    low, high = columns["time_ci_low_s"], columns["time_ci_high_s"]
    assert low is not None
    assert high is not None
    return compare.Interval(statistics.median(times), low, high, True)


def _log_variance(times: Times) -> tuple[float, int]:
    return statistics.variance(map(math.log, times)), len(times) - 1


def _percent(found: Sequence[bool]) -> float:
    return 100 * sum(found) / len(found)
