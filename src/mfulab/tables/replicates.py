"""Replicates of one run become one row: processes apart in time, and the interval that their spread allows.

Windows in a row inside one process see one state of the machine (a neighbour on the host, where memory lies, which core
a thread got), so their spread says nothing of the next process. The interval therefore comes from the medians of
several processes, never from within one.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mfulab.schema.replicates import base_name
from mfulab.timing.statistics import Stats, interval_half_width

Record = dict[str, Any]
Records = dict[str, list[Record]]

TIMES = {"profile": "time_s", "matmul": "time_s"}  # what the interval is of, by table
ADDED = ("process_s", "measured_s", "windows", "steps", "window_s", "repetitions", "unheld_repetitions")
FIRST = ("started_at", "first_call_s", "first_calls", "first_calls_mean_s", "compile_s", "loss")  # of the first process
# Weight of the machine's usual spread beside a run's own, in degrees of freedom, and the fewest runs that tell it.
PRIOR_DEGREES = 4
FEWEST_RUNS = 8
# Median of χ² with d degrees of freedom, ÷ d: a median of sample variances ÷ this is their common variance.
MEDIAN_OF_CHI_SQUARE = {1: 0.4549, 2: 0.6931, 3: 0.7887, 4: 0.8392}


def merge(records: Records) -> Records:
    """The same records with one row for each run; rows of recorded machines are one each already."""
    for table in TIMES:
        if table in records:
            records[table] = merge_rows(records[table], TIMES[table])
    return records


def merge_rows(rows: Sequence[Record], time: str = "time_s") -> list[Record]:
    """One row for each run of `rows`, in the order of their first replicates.

    Numbers that were measured are medians over the processes, durations and counts sums; `time`'s 95 % confidence
    interval is in `time_ci_low_s` and `time_ci_high_s`, empty if fewer than two processes measured it.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for row in rows:
        groups.setdefault((row["hardware"], row["recorded"], row.get("experiment"), base_name(row["run"])), []).append(
            row
        )
    merged = [_one(group) for group in groups.values()]
    spreads: dict[str, list[tuple[float, int]]] = {}  # by machine
    for key, group in groups.items():
        spread = None if key[1] else _log_spread(group, time)
        spreads.setdefault(key[0], []).extend([spread] if spread else [])
    usual = {hardware: usual_variance(found) for hardware, found in spreads.items()}
    for (key, group), row in zip(groups.items(), merged, strict=True):
        if key[1] or row.get("replicates"):  # recorded or merged before: it brings its own interval
            continue
        row |= interval_columns([each[time] for each in _timed(group, time)], usual[key[0]])
    return merged


def interval_columns(times: Sequence[float], usual: float | None) -> dict[str, float | None]:
    """`replicates`, their relative spread in percent and the interval of their median.

    Args:
        times: the medians of each process, in seconds.
        usual: variance of the logarithm of a time between processes on this machine, None if too few runs tell it.
    """
    columns: dict[str, float | None] = {"replicates": len(times) or None}
    columns |= dict.fromkeys(("between_spread_percent", "time_ci_low_s", "time_ci_high_s"))
    if len(times) < 2:
        return columns
    logarithms = [math.log(value) for value in times]
    own, degrees = statistics.variance(logarithms), len(times) - 1
    columns["between_spread_percent"] = 100 * math.sqrt(own)
    if usual is not None:  # a run's few processes borrow from what the machine does to all runs
        own = (degrees * own + PRIOR_DEGREES * usual) / (degrees + PRIOR_DEGREES)
        degrees += PRIOR_DEGREES
    half = interval_half_width(math.sqrt(own), len(times), degrees)
    middle = Stats(times).median
    columns["time_ci_low_s"], columns["time_ci_high_s"] = middle * math.exp(-half), middle * math.exp(half)
    return columns


def usual_variance(spreads: Sequence[tuple[float, int]]) -> float | None:
    """The variance between processes that most runs of a machine have; `spreads` are (variance, degrees) of each run.

    A median, which a few disturbed runs do not move.
    """
    if len(spreads) < FEWEST_RUNS:
        return None
    scaled = [variance / MEDIAN_OF_CHI_SQUARE.get(degrees, 1 - 2 / (9 * degrees)) for variance, degrees in spreads]
    return statistics.median(scaled)


def _log_spread(group: Sequence[Mapping[str, Any]], time: str) -> tuple[float, int] | None:
    logarithms = [math.log(row[time]) for row in _timed(group, time)]
    return (statistics.variance(logarithms), len(logarithms) - 1) if len(logarithms) > 1 else None


def _timed(group: Iterable[Mapping[str, Any]], time: str) -> list[Mapping[str, Any]]:
    return [row for row in group if row["status"] == "ok" and (row.get(time) or 0) > 0]


def _one(group: Sequence[Record]) -> Record:
    first, *others = sorted(group, key=lambda row: len(row["run"]))
    row = {**first, "run": base_name(first["run"])}
    measured = [each for each in (first, *others) if each["status"] == "ok"]
    lost = [each for each in others if each["status"] != "ok"]
    if first["status"] != "ok" or not others:
        return row
    if lost:
        row["message"] = f"{len(lost)} of {len(group)} replicates ended {lost[0]['status']}: {lost[0]['message']}"
    for name, value in first.items():
        values = [each[name] for each in measured if _is_number(each.get(name))]
        if name in ADDED and values:
            row[name] = sum(values)
        elif _is_number(value) and name not in FIRST:
            median = statistics.median(values)
            row[name] = median if isinstance(value, float) else type(value)(round(median))
    if "steady" in first:
        row["steady"] = all(each["steady"] is not False for each in measured)
    return row


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
