"""Replicates of a run become one row: processes apart in time, and the interval that their spread
allows."""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev, variance
from typing import Any

import numpy as np

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Row
from mfulab.core.replicates import base_name, replicate_of
from mfulab.core.rows import NOT_MEASURED
from mfulab.core.said import Said, cell_of, of_cell
from mfulab.device import is_gpu
from mfulab.device.samplers.reading import UNTOLD
from mfulab.lab.tables.columns import Record, Records
from mfulab.timing import statistics as stats
from mfulab.timing.probe import DISTURBED, Best, State

ADDED: tuple[str, ...] = (
    "process_s",
    "measured_s",
    "windows",
    "steps",
    "window_s",
    "repetitions",
    "unheld_repetitions",
    "disturbed_windows",
    "repeated_windows",
    "probe_s",
)
FIRST = (
    "started_at",
    "first_call_s",
    "first_calls",
    "first_calls_mean_s",
    "compile_s",
    "loss",
)  # of the first ok one
# By machine and threads: a matmul on two threads is no measure of one on four.
Bests = Mapping[tuple[str, int], Best]
# the share of probes that may be faster than the best: one lucky probe must not disturb all others
QUIET = 0.05


@dataclass(frozen=True)
class Quantity:
    """A column that processes measure, its interval's columns, and whether it is a rate or a low
    quantile."""

    name: str
    low: str
    high: str
    is_rate: bool = False
    is_low: bool = False

    def on(self, hardware: str, gpus: Collection[str]) -> "Quantity":
        """The quantity as a machine measures it: nobody shares a GPU, whose times are medians."""
        return replace(self, is_low=self.is_low and hardware not in gpus)

    def estimate(self, values: Sequence[float]) -> float:
        if self.is_low:
            return stats.undisturbed(values)
        return stats.Stats(values).median

    def variance(self, values: Sequence[float]) -> tuple[float, int]:
        """(variance, degrees of freedom) of the logarithms of two values or more."""
        if self.is_low:
            return stats.fast_variance(values)
        return (variance(map(math.log, values)), len(values) - 1)

    def half_width(self, values: Sequence[float], usual: float | None) -> float | None:
        half_width = stats.undisturbed_half_width if self.is_low else stats.relative_half_width
        return half_width(values, usual)


TIME = Quantity("time_s", "time_ci_low_s", "time_ci_high_s", is_low=True)
RATES = (
    Quantity("measured_tflop_s", "measured_ci_low_tflop_s", "measured_ci_high_tflop_s", True),
    Quantity("measured_gb_s", "measured_ci_low_gb_s", "measured_ci_high_gb_s", True),
)
MEASURED = {"profile": (TIME,), "matmul": (TIME,), "ceilings": RATES}  # by table


def merge(records: Records) -> Records:
    """Records with one row for each run; rows of recorded machines are one each already."""
    measured = itertools.chain.from_iterable(records.get(table, []) for table in MEASURED)
    best = best_probes(row for row in measured if not row["recorded"])
    gpus = set()
    for row in records.get("environment", []):
        if is_gpu(row.get("device")):
            gpus.add(row["hardware"])
    for table, quantities in MEASURED.items():
        if table in records:
            records[table] = merge_rows(records[table], quantities, best, gpus)
    return records


def merge_rows(rows: Sequence[Record], quantities: Sequence[Quantity] = (TIME,), best: Bests | None = None,
               gpus: Collection[str] = ()) -> list[Record]:  # fmt: skip
    """Rows of several processes made one for each run: medians over those that count, sums of
    durations and counts over all. A CPU's time is the undisturbed one, its ceiling the best. `best`
    is what the probe reads at best on each machine; `gpus` are machines whose times are medians, as
    nobody shares them. An interval needs two processes."""
    if best is None:
        best = best_probes(row for row in rows if not row["recorded"])
    runs = []
    for key, group in _processes(rows).items():
        counts = counting(group, best)
        runs.append(_Run(key[0], key[1], group, counts, _merged(group, counts)))
    for column in quantities:
        _add_intervals(runs, column, column is quantities[-1], best, gpus)
    return [run.row for run in runs]


@dataclass
class _Run:
    """Processes of one run: all of them, those that count, and the row that they become."""

    hardware: str
    is_recorded: bool
    group: list[Record]
    counts: list[Record]
    row: Record


def _add_intervals(
    runs: Sequence[_Run], column: Quantity, is_last: bool, best: Bests, gpus: Collection[str]
) -> None:
    """Adds the interval of one quantity to each run's row, by the spread usual on its machine. The
    last quantity's columns are there without values, too."""
    spreads = defaultdict[str, list[tuple[float, int]]](list)
    for run in runs:
        values = [row[column.name] for row in _timed(run.counts, column.name)]
        if len(values) > 1 and not run.is_recorded:
            spreads[run.hardware].append(column.on(run.hardware, gpus).variance(values))
    for run in runs:
        has_interval = run.is_recorded or run.row.get("replicates")
        if has_interval or not (is_last or _timed(run.counts, column.name)):
            continue
        usual = stats.usual_variance(spreads[run.hardware])
        _add_interval(run, column.on(run.hardware, gpus), usual, best)


def _add_interval(run: _Run, quantity: Quantity, usual: float | None, best: Bests) -> None:
    timed = _timed(run.counts, quantity.name)
    values = [process[quantity.name] for process in timed]
    slowdowns = [slowdown(process, best) for process in timed]
    row = run.row
    row |= interval_columns(values, usual, slowdowns, quantity)
    row["left_out_replicates"] = len(_timed(run.group, quantity.name)) - len(timed)
    if values and not quantity.is_rate:
        row["process_times_s"] = json.dumps([float(f"{value:.6g}") for value in values])
        row["process_cards"] = _cards(timed)
        row |= _both_times(run.group, timed, quantity)
    elif values and row.get("threads"):
        # Neighbours can only slow a CPU down: its best rate counts, and the interval moves along.
        row[quantity.name] = max(values)
        moved = max(values) / stats.Stats(values).median
        for end in (quantity.low, quantity.high):
            if row[end] is not None:
                row[end] *= moved


def _processes(rows: Iterable[Record]) -> dict[tuple[str, bool, str], list[Record]]:
    """Rows by machine and run, of any experiment, first replicates first; unmeasured ones where a
    run has no other."""
    groups = defaultdict[tuple[str, bool, str], list[Record]](list)
    for row in rows:
        groups[row["hardware"], row["recorded"], base_name(row["run"])].append(row)
    for group in groups.values():
        group.sort(key=lambda row: replicate_of(row["run"]))
        group[:] = [row for row in group if row["status"] != NOT_MEASURED] or group[:1]
    return groups


def counting(group: Sequence[Record], best: Bests) -> list[Record]:
    """The replicates that count: where two or more met no slow state of the machine, by its probe,
    those alone."""
    quiet = []
    for row in group:
        if row["status"] == "ok" and slowdown(row, best) < DISTURBED:
            quiet.append(row)
    if len(quiet) > 1:
        return quiet
    return list(group)


def interval_columns(
    times: Sequence[float],
    usual: float | None,
    slowdowns: Sequence[float] = (),
    quantity: Quantity = TIME,
) -> dict[str, float | None]:
    """`replicates`, their relative spread in percent and the interval of what is estimated from
    `times` (s) or rates. `usual` is the variance of a time's logarithm between processes here, None
    if unknown. A process in a slow state (`slowdowns`, by the probe) would have been that much
    faster, at most: the interval holds both."""
    columns: dict[str, float | None] = {
        "replicates": len(times) or None,
        "disturbed_replicates": None,
        "slowdown": max(slowdowns, default=None),
        "between_spread_percent": None,
        "precision_percent": None,
        quantity.low: None,
        quantity.high: None,
    }
    if slowdowns:
        columns["disturbed_replicates"] = sum(slow >= DISTURBED for slow in slowdowns)
    if len(times) < 2 or (half := quantity.half_width(times, usual)) is None:
        return columns
    sign = 1 if quantity.is_rate else -1
    freed = list(times)
    for index, slow in enumerate(slowdowns):
        if slow >= DISTURBED:
            freed[index] *= slow**sign
    middles = quantity.estimate(times), quantity.estimate(freed)
    low = min(middles) * math.exp(-half)
    high = max(middles) * math.exp(half)
    columns["between_spread_percent"] = 100 * stdev(map(math.log, times))
    columns["precision_percent"] = 100 * (math.sqrt(high / low) - 1)
    columns[quantity.low], columns[quantity.high] = low, high
    return columns


def jackknife_variance(times: Sequence[float]) -> tuple[float, int]:
    """(variance, degrees of freedom) that one of several processes brings to the logarithm of their
    undisturbed time: the delete-half jackknife, which holds for quantiles (Shao and Wu, 1989), over
    a hundred halves drawn at random."""
    count = len(times)
    kept = count - count // 2
    logarithms = np.log(times)
    halves = np.random.default_rng(0).permuted(np.tile(logarithms, (100, 1)), axis=1)[:, :kept]
    apart = np.percentile(halves, stats.UNDISTURBED, axis=1) - np.percentile(
        logarithms, stats.UNDISTURBED
    )
    return count * kept / (count - kept) * float(np.mean(apart**2)), count - 1


def ratio_half_width(old: Sequence[float], new: Sequence[float], usual: float | None) -> float:
    """Half the 95 % interval of the logarithm of a ratio of undisturbed times; `usual` as by
    `jackknife_variance`."""
    (before, few), (after, more) = map(jackknife_variance, (old, new))
    variance = (before * few + after * more) / (few + more)
    count = 1 / (1 / len(old) + 1 / len(new))
    return stats.interval_half_width(variance, few + more, count, usual=usual)


def measurements(times: Sequence[float]) -> list[list[float]]:
    """The processes of a run as several measurements, apart in time: three to each, or two of four
    or five in all."""
    if len(times) >= 6:
        size = 3
    elif len(times) >= 4:
        size = 2
    else:
        size = 0
    if size:
        return [list(times[at : at + size]) for at in range(0, len(times) - size + 1, size)]
    return []


def drift(runs: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation of undisturbed times' logarithms between measurements, beyond what their
    processes explain. `runs` are the processes' times of each, in order. None if too few were
    measured several times; 0: none beyond."""
    excess = []
    for split in filter(None, map(measurements, runs)):
        seen = variance([math.log(stats.undisturbed(times)) for times in split])
        inside = fmean(stats.fast_variance(times)[0] for times in split)
        excess.append(seen - stats.QUANTILE_ERROR**2 * inside / len(split[0]))
    # A mean: variances of few measurements are skewed, and their median lies below what they
    # estimate.
    if len(excess) >= stats.FEWEST_RUNS:
        return math.sqrt(max(0.0, fmean(excess)))
    return None


def times_of(row: Row) -> list[float]:
    """Times of the processes that measured a merged row, in seconds and in their order; none where
    not kept."""
    try:
        found = []
        for value in parse_json(row.get("process_times_s") or "[]"):
            if value > 0:
                found.append(float(value))
        return found
    except (TypeError, ValueError):
        return []


def _cards(timed: Iterable[Row]) -> str | None:
    """The one card of each process as JSON; None on a CPU, and where a process had several."""
    cards = []
    for process in timed:
        cards.append(process.get("device_uuid") or "")
    if all(cards) and not any(" " in card for card in cards):
        return json.dumps(cards)
    return None


def _both_times(
    group: Sequence[Record], counts: Sequence[Mapping[str, object]], quantity: Quantity
) -> Record:
    """The undisturbed times, of the processes that count; the time as met, of all; and what the
    machine cost."""
    columns: Record = {}
    for name in ("time_s", "reference_time_s"):  # which are compared with one another
        if values := [row[name] for row in _timed(counts, name)]:
            columns[name] = quantity.estimate(values)
    if met := [row["median_time_s"] for row in _timed(group, "median_time_s")]:
        columns["median_time_s"] = stats.Stats(met).median
        cost = max(0.0, 100 * (columns["median_time_s"] / columns["time_s"] - 1))
        columns["machine_cost_percent"] = cost if quantity.is_low else None
    return columns


def _timed(group: Iterable[Row], name: str) -> list[Row]:
    return [row for row in group if row["status"] == "ok" and (row.get(name) or 0) > 0]


def _merged(group: Sequence[Record], counts: Sequence[Record]) -> Record:
    """One row for the processes of a run: its first ok one, or first one, with what all measured."""
    measured = [row for row in group if row["status"] == "ok"]
    first = (measured or group)[0]
    row = {**first, "run": base_name(first["run"])}
    if not measured or len(group) == 1:
        return row
    lost = [row for row in group if row["status"] != "ok"]
    if lost:
        numbers = {"count": len(lost), "total": len(group), "status": lost[0]["status"]}
        why = of_cell(lost[0]["message"]) or UNTOLD
        row["message"] = cell_of(Said("replicates_lost", numbers | {"why": why}))
    row |= _merged_numbers(first, measured, counts)
    for name in ("device_uuid", "host"):
        places = dict.fromkeys(str(process.get(name) or "") for process in measured)
        row[name] = " ".join(filter(None, places))
    if "steady" in first:
        row["steady"] = _is_steady(counts)
    if "probes" in first:
        row["probes"] = _merged_probes(measured)
    return row


def _merged_numbers(first: Record, measured: Sequence[Record], counts: Sequence[Record]) -> Record:
    """Sums over all processes that measured, and medians over those that count."""
    merged: Record = {}
    for name, value in first.items():
        if name in ADDED:
            values = _numbers(measured, name)
            merged[name] = sum(values) if values else value
        elif _is_number(value) and name not in FIRST:
            middle = median(_numbers(counts, name) or _numbers(measured, name))
            merged[name] = middle if isinstance(value, float) else type(value)(round(middle))
    return merged


def _is_steady(counts: Sequence[Record]) -> bool:
    """True if most processes were: what began early only lasted longer, and the undisturbed time is
    not of that process."""
    warm = []
    for row in counts:
        if row["status"] == "ok":
            warm.append(row["steady"] is not False)
    return 2 * sum(warm) > len(warm)


def _merged_probes(measured: Sequence[Record]) -> str | None:
    """The probes of all processes as JSON, in order of time; None without any."""
    probed = []
    for process in measured:
        if process.get("probes"):
            probed.append(probes(process))
    states: list[State] = []
    for _, states_of in probed:
        states += states_of
    if not states:
        return None
    states.sort(key=lambda state: state.at_s)
    merged: dict[str, Any] = {"threads": probed[0][0]}
    for name in ("at_s", "product_s", "copy_s"):
        merged[name] = [getattr(state, name) for state in states]
    return json.dumps(merged)


def _numbers(rows: Iterable[Record], name: str) -> list[float]:
    return [row[name] for row in rows if _is_number(row.get(name))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def probes(row: Row) -> tuple[int, list[State]]:
    """Threads of a row's probes, and the probes; none where they are missing or cannot be read."""
    try:
        probe = parse_json(row.get("probes") or "{}")
        columns = (probe.get("at_s", ()), probe.get("product_s", ()), probe.get("copy_s", ()))
        states = []
        for readings in zip(*columns, strict=True):
            state = State(*map(float, readings))
            if min(state.product_s, state.copy_s) > 0:
                states.append(state)
        return int(probe.get("threads", 0)), states
    except (ValueError, TypeError, AttributeError):
        return 0, []


def best_probes(rows: Iterable[Row]) -> dict[tuple[str, int], Best]:
    """Readings of each machine's probes where nothing disturbs: their fastest twentieth."""
    states_of = defaultdict[tuple[str, int], list[State]](list)
    for row in rows:
        threads, states = probes(row)
        states_of[row["hardware"], threads] += states
    best = {}
    for key, states in states_of.items():
        if states:
            quick = int(QUIET * len(states))
            parts = [sorted(getattr(state, part) for state in states) for part in Best._fields]
            best[key] = Best(*(readings[quick] for readings in parts))
    return best


def slowdown(row: Row, bests: Bests) -> float:
    """The median of a row's probes against the machine's best, 1 or more; 1 without probes."""
    threads, states = probes(row)
    best = bests.get((row["hardware"], threads))
    if best and states:
        return median(state.slowdown(best) for state in states)
    return 1.0
