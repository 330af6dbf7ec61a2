"""Replicates of a run become one row: processes apart in time, and the interval that their spread allows."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean, median, stdev, variance
from typing import Any, NamedTuple

import numpy as np

from mfulab.core.replicates import base_name, replicate_of
from mfulab.core.rows import NOT_MEASURED
from mfulab.device import is_gpu
from mfulab.lab.tables.columns import Record, Records
from mfulab.timing import statistics as stats
from mfulab.timing.probe import DISTURBED, Best, State

ADDED: tuple[str, ...] = ("process_s", "measured_s", "windows", "steps", "window_s", "repetitions")
ADDED += ("unheld_repetitions", "disturbed_windows", "repeated_windows", "probe_s")
FIRST = ("started_at", "first_call_s", "first_calls", "first_calls_mean_s", "compile_s", "loss")  # of the first ok one
# By machine and threads: a matmul on two threads is no measure of one on four.
Bests = Mapping[tuple[str, int], Best]
QUIET = 0.05  # the share of probes that may be faster than the best: one lucky probe must not disturb all others


class Quantity(NamedTuple):
    """A column that processes measure, its interval's columns, and whether it is a rate or a low quantile."""

    name: str
    low: str
    high: str
    is_rate: bool = False
    is_low: bool = False

    def estimate(self, values: Sequence[float]) -> float:
        return stats.undisturbed(values) if self.is_low else stats.Stats(values).median

    def variance(self, values: Sequence[float]) -> tuple[float, int]:
        """(variance, degrees of freedom) of the logarithms of two values or more."""
        return stats.fast_variance(values) if self.is_low else (variance(map(math.log, values)), len(values) - 1)

    def half_width(self, values: Sequence[float], usual: float | None) -> float | None:
        half_width = stats.undisturbed_half_width if self.is_low else stats.relative_half_width
        return half_width(values, usual, stats.PRIOR_DEGREES)


TIME = Quantity("time_s", "time_ci_low_s", "time_ci_high_s", is_low=True)
RATES = tuple(
    Quantity(f"measured_{u}", f"measured_ci_low_{u}", f"measured_ci_high_{u}", True) for u in ("tflop_s", "gb_s")
)
MEASURED = {"profile": (TIME,), "matmul": (TIME,), "ceilings": RATES}  # by table


def merge(records: Records) -> Records:
    """Records with one row for each run; rows of recorded machines are one each already."""
    best = best_probes(row for table in MEASURED for row in records.get(table, []) if not row["recorded"])
    gpus = {row["hardware"] for row in records.get("environment", []) if is_gpu(row.get("device"))}
    for table, quantities in MEASURED.items():
        if table in records:
            records[table] = merge_rows(records[table], quantities, best, gpus)
    return records


def merge_rows(rows: Sequence[Record], quantities: Sequence[Quantity] = (TIME,), best: Bests | None = None,
               gpus: Collection[str] = ()) -> list[Record]:  # fmt: skip
    """Rows of several processes made one for each run: medians over those that count, sums of durations and counts over
    all. A CPU's time is the undisturbed one, its ceiling the best. `best` is what the probe reads at best on each
    machine; `gpus` are machines whose times are medians, as nobody shares them. An interval needs two processes."""
    groups = _processes(rows)
    best = best_probes(row for row in rows if not row["recorded"]) if best is None else best
    quiet = {key: counting(group, best) for key, group in groups.items()}
    merged = [_one(group, quiet[key]) for key, group in groups.items()]
    for column in quantities:
        on = {key[0]: column._replace(is_low=column.is_low and key[0] not in gpus) for key in quiet}
        spreads = defaultdict[str, list[tuple[float, int]]](list)
        for (hardware, is_recorded, _), group in quiet.items():
            values = [row[column.name] for row in _timed(group, column.name)]
            if len(values) > 1 and not is_recorded:
                spreads[hardware].append(on[hardware].variance(values))
        usual = {hardware: stats.usual_variance(spreads[hardware]) for hardware in on}
        for (key, group), row in zip(quiet.items(), merged, strict=True):
            quantity, timed = on[key[0]], _timed(group, column.name)
            # Recorded or merged before: it brings its own interval. Of a ceiling one of two quantities is there.
            if key[1] or row.get("replicates") or (not timed and column is not quantities[-1]):
                continue
            values = [process[quantity.name] for process in timed]
            row |= interval_columns(values, usual[key[0]], [slowdown(process, best) for process in timed], quantity)
            row["left_out_replicates"] = len(_timed(groups[key], quantity.name)) - len(timed)
            if values and not quantity.is_rate:
                row["process_times_s"] = json.dumps([float(f"{value:.6g}") for value in values])
                row |= _both_times(groups[key], timed, quantity)
            elif values and row.get("threads"):  # neighbours can only slow a CPU down; the interval moves along
                row[quantity.name], moved = max(values), max(values) / stats.Stats(values).median
                row |= {end: row[end] * moved for end in (quantity.low, quantity.high) if row[end] is not None}
    return merged


def _processes(rows: Iterable[Record]) -> dict[tuple[str, bool, str], list[Record]]:
    """Rows by machine and run, of any experiment, first replicates first; unmeasured ones where a run has no other."""
    groups = defaultdict[tuple[str, bool, str], list[Record]](list)
    for row in rows:
        groups[row["hardware"], row["recorded"], base_name(row["run"])].append(row)
    for group in groups.values():
        group.sort(key=lambda row: replicate_of(row["run"]))
        group[:] = [row for row in group if row["status"] != NOT_MEASURED] or group[:1]
    return groups


def counting(group: Sequence[Record], best: Bests) -> list[Record]:
    """The replicates that count: where two or more met no slow state of the machine, by its probe, those alone."""
    quiet = [row for row in group if row["status"] == "ok" and slowdown(row, best) < DISTURBED]
    return quiet if len(quiet) > 1 else list(group)


def interval_columns(
    times: Sequence[float], usual: float | None, slowdowns: Sequence[float] = (), quantity: Quantity = TIME
) -> dict[str, float | None]:
    """`replicates`, their relative spread in percent and the interval of what is estimated from `times` (s) or rates.
    `usual` is the variance of a time's logarithm between processes here, None if unknown. A process in a slow state
    (`slowdowns`, by the probe) would have been that much faster, at most: the interval holds both."""
    disturbed = sum(slowdown >= DISTURBED for slowdown in slowdowns) if slowdowns else None
    columns: dict[str, float | None] = {"replicates": len(times) or None, "disturbed_replicates": disturbed}
    columns["slowdown"] = max(slowdowns, default=None)
    columns |= dict.fromkeys(("between_spread_percent", "precision_percent", quantity.low, quantity.high))
    if len(times) < 2 or (half := quantity.half_width(times, usual)) is None:
        return columns
    sign, slow = 1 if quantity.is_rate else -1, slowdowns or [1.0] * len(times)
    freed = [value * factor**sign if factor >= DISTURBED else value for value, factor in zip(times, slow, strict=True)]
    middles = quantity.estimate(times), quantity.estimate(freed)
    low, high = min(middles) * math.exp(-half), max(middles) * math.exp(half)
    columns["between_spread_percent"] = 100 * stdev(map(math.log, times))
    columns["precision_percent"] = 100 * (math.sqrt(high / low) - 1)
    columns[quantity.low], columns[quantity.high] = low, high
    return columns


def jackknife_variance(times: Sequence[float]) -> tuple[float, int]:
    """(variance, degrees of freedom) that one of several processes brings to the logarithm of their undisturbed time:
    the delete-half jackknife, which holds for quantiles (Shao and Wu, 1989), over a hundred halves drawn at random."""
    count = len(times)
    kept = count - count // 2
    logarithms = np.log(times)
    halves = np.random.default_rng(0).permuted(np.tile(logarithms, (100, 1)), axis=1)[:, :kept]
    apart = np.percentile(halves, stats.UNDISTURBED, axis=1) - np.percentile(logarithms, stats.UNDISTURBED)
    return count * kept / (count - kept) * float(np.mean(apart**2)), count - 1


def ratio_half_width(old: Sequence[float], new: Sequence[float], usual: float | None) -> float:
    """Half the 95 % interval of the logarithm of a ratio of undisturbed times; `usual` as by `jackknife_variance`."""
    (before, few), (after, more) = map(jackknife_variance, (old, new))
    variance, count = (before * few + after * more) / (few + more), 1 / (1 / len(old) + 1 / len(new))
    return stats.interval_half_width(variance, few + more, count, usual=usual, prior=stats.PRIOR_DEGREES)


def measurements(times: Sequence[float]) -> list[list[float]]:
    """The processes of a run as several measurements, apart in time: three to each, or two of four or five in all."""
    size = 3 if len(times) >= 6 else 2 if len(times) >= 4 else 0
    return [list(times[at : at + size]) for at in range(0, len(times) - size + 1, size)] if size else []


def drift(runs: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation of undisturbed times' logarithms between measurements, beyond what their processes explain.
    `runs` are the processes' times of each, in order. None if too few were measured several times; 0: none beyond."""
    excess = []
    for split in filter(None, map(measurements, runs)):
        seen = variance([math.log(stats.undisturbed(times)) for times in split])
        inside = fmean(stats.fast_variance(times)[0] for times in split)
        excess.append(seen - stats.QUANTILE_ERROR**2 * inside / len(split[0]))
    # A mean: variances of few measurements are skewed, and their median lies below what they estimate.
    return math.sqrt(max(0.0, fmean(excess))) if len(excess) >= stats.FEWEST_RUNS else None


def times_of(row: Mapping[str, Any]) -> list[float]:
    """Times of the processes that measured a merged row, in seconds and in their order; none where not kept."""
    try:
        return [float(value) for value in json.loads(row.get("process_times_s") or "[]") if value > 0]
    except (TypeError, ValueError):
        return []


def _both_times(group: Sequence[Record], counts: Sequence[Mapping[str, Any]], quantity: Quantity) -> Record:
    """The undisturbed times, of the processes that count; the time as met, of all; and what the machine cost."""
    columns: Record = {}
    for name in ("time_s", "reference_time_s"):  # which are compared with one another
        if values := [row[name] for row in _timed(counts, name)]:
            columns[name] = quantity.estimate(values)
    if met := [row["median_time_s"] for row in _timed(group, "median_time_s")]:
        columns["median_time_s"] = stats.Stats(met).median
        cost = max(0.0, 100 * (columns["median_time_s"] / columns["time_s"] - 1))
        columns["machine_cost_percent"] = cost if quantity.is_low else None
    return columns


def _timed(group: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [row for row in group if row["status"] == "ok" and (row.get(name) or 0) > 0]


def _one(group: Sequence[Record], counts: Sequence[Record]) -> Record:
    measured = [row for row in group if row["status"] == "ok"]
    lost = [row for row in group if row["status"] != "ok"]
    first = (measured or group)[0]
    row = {**first, "run": base_name(first["run"])}
    if not measured or len(group) == 1:
        return row
    if lost:
        row["message"] = f"{len(lost)} of {len(group)} replicates ended {lost[0]['status']}: {lost[0]['message']}"
    for name, value in first.items():
        values = [row[name] for row in measured if _is_number(row.get(name))]
        if name in ADDED and values:
            row[name] = sum(values)
        elif _is_number(value) and name not in FIRST:
            middle = median([row[name] for row in counts if _is_number(row.get(name))] or values)
            row[name] = middle if isinstance(value, float) else type(value)(round(middle))
    if "steady" in first:
        # Of most: what began early only lasted longer, and the undisturbed time is not of that process.
        warm = [row["steady"] is not False for row in counts if row["status"] == "ok"]
        row["steady"] = 2 * sum(warm) > len(warm)
    if "probes" in first:  # of all processes, in order of time
        probed = [probes(process) for process in measured if process.get("probes")]
        states = sorted((state for _, states_of in probed for state in states_of), key=lambda state: state.at_s)
        columns = {name: [getattr(state, name) for state in states] for name in ("at_s", "product_s", "copy_s")}
        row["probes"] = json.dumps({"threads": probed[0][0], **columns}) if states else None
    return row


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def probes(row: Mapping[str, Any]) -> tuple[int, list[State]]:
    """Threads of a row's probes, and the probes; none where they are missing or cannot be read."""
    try:
        probe = json.loads(row.get("probes") or "{}")
        columns = (probe.get("at_s", ()), probe.get("product_s", ()), probe.get("copy_s", ()))
        states = [State(float(at), float(product), float(copy)) for at, product, copy in zip(*columns, strict=True)]
        return int(probe.get("threads", 0)), [state for state in states if min(state.product_s, state.copy_s) > 0]
    except (ValueError, TypeError, AttributeError):
        return 0, []


def best_probes(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], Best]:
    """Readings of each machine's probes where nothing disturbs: their fastest twentieth."""
    states_of = defaultdict[tuple[str, int], list[State]](list)
    for row in rows:
        threads, states = probes(row)
        states_of[row["hardware"], threads] += states

    def quick(states: Sequence[State], part: str) -> float:
        return sorted(getattr(state, part) for state in states)[int(QUIET * len(states))]

    return {key: Best(*(quick(states, part) for part in Best._fields)) for key, states in states_of.items() if states}


def slowdown(row: Mapping[str, Any], bests: Bests) -> float:
    """The median of a row's probes against the machine's best, 1 or more; 1 without probes."""
    threads, states = probes(row)
    best = bests.get((row["hardware"], threads))
    return median(state.slowdown(best) for state in states) if best and states else 1.0
