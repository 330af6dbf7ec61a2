"""Merges the replicates of a run, processes apart in time, into one row with a confidence
interval."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev, variance
from typing import Any, NamedTuple

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

# Columns summed over all processes.
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
# Columns taken from the first successful process.
FIRST = (
    "started_at",
    "first_call_s",
    "first_calls",
    "first_calls_mean_s",
    "compile_s",
    "loss",
)
# quantile of probe readings taken as the best, so that one lucky probe does not mark all others
QUIET = 0.05


class RunKey(NamedTuple):
    """Identifies a run across experiments and processes; recorded ones are apart from measured
    ones."""

    hardware: str
    is_recorded: bool
    run: str

    @classmethod
    def of(cls, row: Row) -> "RunKey":
        """The run of a row of one process, or of all."""
        return cls(row["hardware"], bool(row["recorded"]), base_name(row["run"]))


class Threads(NamedTuple):
    """A machine with a number of threads: a matmul on two says nothing of one on four."""

    hardware: str
    number: int


class Probes(NamedTuple):
    """States of the machine that a process met, and the threads of the probe."""

    threads: int
    states: list[State]


Bests = Mapping[Threads, Best]  # best readings of the probe


@dataclass(frozen=True)
class Quantity:
    """A measured column and the columns of its interval. `is_low`: estimated by a low quantile, not
    the median."""

    name: str
    low: str
    high: str
    is_rate: bool = False
    is_low: bool = False

    def on(self, hardware: str, gpus: Collection[str]) -> "Quantity":
        """Returns the quantity as measured on a machine. Nobody shares a GPU, so its times are
        medians."""
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
    """Merges the replicates of each run into one row. Rows of recordings are merged already."""
    measured = []
    for table in MEASURED:
        measured += records.get(table, [])
    best = best_probes(measured)
    gpus = set()
    for row in records.get("environment", []):
        if is_gpu(row.get("device")):
            gpus.add(row["hardware"])
    for table, quantities in MEASURED.items():
        if table in records:
            records[table] = merge_rows(records[table], quantities, best, gpus)
    return records


def merge_rows(
    rows: Sequence[Record],
    quantities: Sequence[Quantity] = (TIME,),
    best: Bests | None = None,
    gpus: Collection[str] = (),
) -> list[Record]:
    """Merges the rows of several processes into one for each run: medians over the processes that
    count, sums of durations and counts over all. A CPU's time is the undisturbed one, its ceiling
    the best. `best` holds each machine's best probe readings. `gpus` are machines whose times are
    medians, as nobody shares them. An interval needs two processes."""
    if best is None:
        best = best_probes(rows)
    runs = []
    for key, group in _processes(rows).items():
        counts = counting(group, best)
        merged = _merged(group, counts)
        runs.append(_Run(key.hardware, key.is_recorded, group, counts, merged))
    for quantity in quantities:
        _add_intervals(runs, quantity, quantity is quantities[-1], best, gpus)
    return [run.row for run in runs]


@dataclass
class _Run:
    """Processes of one run: all, those that count, and the merged row."""

    hardware: str
    is_recorded: bool
    group: list[Record]
    counts: list[Record]
    row: Record


def _add_intervals(
    runs: Sequence[_Run], quantity: Quantity, is_last: bool, best: Bests, gpus: Collection[str]
) -> None:
    """Adds the interval of one quantity to each run's row, using the usual spread on its machine.
    Columns of the last quantity are added even if empty."""
    spreads = defaultdict[str, list[tuple[float, int]]](list)
    for run in runs:
        values = _values(run.counts, quantity.name)
        if len(values) > 1 and not run.is_recorded:
            spreads[run.hardware].append(quantity.on(run.hardware, gpus).variance(values))
    for run in runs:
        has_interval = run.is_recorded or run.row.get("replicates")
        if has_interval or not (is_last or _timed(run.counts, quantity.name)):
            continue
        usual = stats.usual_variance(spreads[run.hardware])
        _add_interval(run, quantity.on(run.hardware, gpus), usual, best)


def _add_interval(run: _Run, quantity: Quantity, usual: float | None, best: Bests) -> None:
    """Adds the interval of one quantity to a run's row."""
    timed = _timed(run.counts, quantity.name)
    values = _values(run.counts, quantity.name)
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


def _processes(rows: Iterable[Record]) -> dict[RunKey, list[Record]]:
    """Groups rows by machine and run, across experiments, sorted by replicate. An unmeasured row is
    kept only if its run has no other."""
    groups = defaultdict[RunKey, list[Record]](list)
    for row in rows:
        groups[RunKey.of(row)].append(row)
    for group in groups.values():
        group.sort(key=lambda row: replicate_of(row["run"]))
        first = group[0]
        group[:] = [row for row in group if row["status"] != NOT_MEASURED]
        if not group:
            group.append(first)
    return groups


def counting(group: Sequence[Record], best: Bests) -> list[Record]:
    """The replicates that count: those that met no slow state of the machine, by its probe. All, if
    fewer than two did."""
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
    """Columns on replicates: their number, relative spread in percent, and the interval of what is
    estimated from `times` (s) or rates. `usual` is the variance of log times between processes
    here, None if unknown. A process in a slow state (`slowdowns`, by the probe) would have been
    faster by that factor at most; the interval covers both values."""
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
    if len(times) < 2:
        return columns
    half = quantity.half_width(times, usual)
    if half is None:
        return columns
    sign = 1 if quantity.is_rate else -1
    corrected = list(times)
    for index, slow in enumerate(slowdowns):
        if slow >= DISTURBED:
            corrected[index] *= slow**sign
    estimates = quantity.estimate(times), quantity.estimate(corrected)
    low = min(estimates) * math.exp(-half)
    high = max(estimates) * math.exp(half)
    columns["between_spread_percent"] = 100 * stdev(map(math.log, times))
    columns["precision_percent"] = 100 * (math.sqrt(high / low) - 1)
    columns[quantity.low], columns[quantity.high] = low, high
    return columns


def jackknife_variance(times: Sequence[float]) -> tuple[float, int]:
    """(variance per process, degrees of freedom) of the log of undisturbed time, by the delete-half
    jackknife over 100 random halves. Valid for quantiles (Shao and Wu, 1989)."""
    count = len(times)
    kept = count - count // 2
    logarithms = np.log(times)
    generator = np.random.default_rng(0)
    copies = np.tile(logarithms, (100, 1))
    halves = generator.permuted(copies, axis=1)[:, :kept]
    estimates = np.percentile(halves, stats.UNDISTURBED, axis=1)
    errors = estimates - np.percentile(logarithms, stats.UNDISTURBED)
    factor = count * kept / (count - kept)
    return factor * float(np.mean(errors**2)), count - 1


def ratio_half_width(old: Sequence[float], new: Sequence[float], usual: float | None) -> float:
    """Half-width of the 95 % interval of the log ratio of two undisturbed times. `usual` is a
    variance as `jackknife_variance` returns it."""
    old_variance, old_degrees = jackknife_variance(old)
    new_variance, new_degrees = jackknife_variance(new)
    degrees = old_degrees + new_degrees
    pooled = (old_variance * old_degrees + new_variance * new_degrees) / degrees
    count = 1 / (1 / len(old) + 1 / len(new))
    return stats.interval_half_width(pooled, degrees, count, usual=usual)


def measurements(times: Sequence[float]) -> list[list[float]]:
    """Splits a run's processes into measurements apart in time: of three processes each, or two if
    there are only four or five. Empty below four."""
    if len(times) < 4:
        return []
    size = 2
    if len(times) >= 6:
        size = 3
    split = []
    for start in range(0, len(times) - size + 1, size):
        split.append(list(times[start : start + size]))
    return split


def drift(runs: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation of log undisturbed times between measurements of a run, beyond what their
    processes explain. `runs` holds each run's process times in order. None if too few runs were
    measured several times; 0 if nothing is left."""
    excess = []
    for split in filter(None, map(measurements, runs)):
        logarithms = []
        variances = []
        for times in split:
            logarithms.append(math.log(stats.undisturbed(times)))
            of_processes, _ = stats.fast_variance(times)
            variances.append(of_processes)
        explained = stats.QUANTILE_ERROR**2 * fmean(variances) / len(split[0])
        excess.append(variance(logarithms) - explained)
    # A mean: variances of few measurements are skewed, and their median lies below what they
    # estimate.
    if len(excess) >= stats.FEWEST_RUNS:
        return math.sqrt(max(0.0, fmean(excess)))
    return None


def times_of(row: Row) -> list[float]:
    """Process times (s) of a merged row, in order; empty if not recorded."""
    try:
        found = []
        for value in parse_json(row.get("process_times_s") or "[]"):
            if value > 0:
                found.append(float(value))
        return found
    except (TypeError, ValueError):
        return []


def _cards(timed: Iterable[Row]) -> str | None:
    """Card of each process as JSON; None on a CPU, or if a process used several."""
    cards = []
    for process in timed:
        cards.append(process.get("device_uuid") or "")
    if all(cards) and not any(" " in card for card in cards):
        return json.dumps(cards)
    return None


def _both_times(
    group: Sequence[Record], counts: Sequence[Mapping[str, object]], quantity: Quantity
) -> Record:
    """Undisturbed times of the processes that count, the median time of all, and the machine's cost
    in percent."""
    columns: Record = {}
    for name in ("time_s", "reference_time_s"):  # compared with each other
        values = _values(counts, name)
        if values:
            columns[name] = quantity.estimate(values)
    medians = _values(group, "median_time_s")
    if medians:
        columns["median_time_s"] = stats.Stats(medians).median
        columns["machine_cost_percent"] = None
        if quantity.is_low:
            longer = columns["median_time_s"] / columns["time_s"]
            columns["machine_cost_percent"] = max(0.0, 100 * (longer - 1))
    return columns


def _timed(group: Iterable[Row], name: str) -> list[Row]:
    """Successful rows with a positive value in the column `name`."""
    found = []
    for row in group:
        value = row.get(name) or 0
        if row["status"] == "ok" and value > 0:
            found.append(row)
    return found


def _values(group: Iterable[Row], name: str) -> list[float]:
    """Positive values in the column `name` of successful rows."""
    return [row[name] for row in _timed(group, name)]


def _merged(group: Sequence[Record], counts: Sequence[Record]) -> Record:
    """Merges the processes of a run into one row, starting from the first that succeeded, or the
    first."""
    measured = []
    lost = []
    for process in group:
        if process["status"] == "ok":
            measured.append(process)
        else:
            lost.append(process)
    first = (measured or group)[0]
    row = {**first, "run": base_name(first["run"])}
    if not measured or len(group) == 1:
        return row
    if lost:
        numbers = {"count": len(lost), "total": len(group), "status": lost[0]["status"]}
        why = of_cell(lost[0]["message"]) or UNTOLD
        row["message"] = cell_of(Said("replicates_lost", numbers | {"why": why}))
    row |= _merged_numbers(first, measured, counts)
    for name in ("device_uuid", "host"):
        distinct = dict[str, None]()
        for process in measured:
            if process.get(name):
                distinct[str(process[name])] = None
        row[name] = " ".join(distinct)
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
            merged[name] = value
            if values:
                merged[name] = sum(values)
        elif _is_number(value) and name not in FIRST:
            values = _numbers(counts, name) or _numbers(measured, name)
            middle = median(values)
            if not isinstance(value, float):
                middle = type(value)(round(middle))
            merged[name] = middle
    return merged


def _is_steady(counts: Sequence[Record]) -> bool:
    """True if most processes reached a steady state. The others only took longer, so the
    undisturbed time is not theirs."""
    steady = []
    for row in counts:
        if row["status"] == "ok":
            steady.append(row["steady"] is not False)
    return 2 * sum(steady) > len(steady)


def _merged_probes(measured: Sequence[Record]) -> str | None:
    """Probes of all processes as JSON, sorted by time; None if there are none."""
    probed = []
    states: list[State] = []
    for process in measured:
        if process.get("probes"):
            probed.append(probes(process))
            states += probed[-1].states
    if not states:
        return None
    states.sort(key=lambda state: state.at_s)
    merged: dict[str, Any] = {"threads": probed[0].threads}
    for name in ("at_s", "product_s", "copy_s"):
        merged[name] = [getattr(state, name) for state in states]
    return json.dumps(merged)


def _numbers(rows: Iterable[Record], name: str) -> list[float]:
    return [row[name] for row in rows if _is_number(row.get(name))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def probes(row: Row) -> Probes:
    """The probes of a row; empty if missing or unreadable."""
    try:
        probe = parse_json(row.get("probes") or "{}")
        at_s = probe.get("at_s", ())
        product_s = probe.get("product_s", ())
        copy_s = probe.get("copy_s", ())
        states = []
        for readings in zip(at_s, product_s, copy_s, strict=True):
            state = State(*map(float, readings))
            if min(state.product_s, state.copy_s) > 0:
                states.append(state)
        return Probes(int(probe.get("threads", 0)), states)
    except (ValueError, TypeError, AttributeError):
        return Probes(0, [])


def best_probes(rows: Iterable[Row]) -> dict[Threads, Best]:
    """Best probe readings of measured, not recorded rows: the 5 % quantile of each reading."""
    states_of = defaultdict[Threads, list[State]](list)
    for row in rows:
        if not row["recorded"]:
            probed = probes(row)
            states_of[Threads(row["hardware"], probed.threads)] += probed.states
    best = {}
    for key, states in states_of.items():
        if states:
            index = int(QUIET * len(states))
            quiet = []
            for part in Best._fields:
                readings = sorted(getattr(state, part) for state in states)
                quiet.append(readings[index])
            best[key] = Best(*quiet)
    return best


def slowdown(row: Row, bests: Bests) -> float:
    """Median slowdown of a row's probes relative to the machine's best, 1 or more; 1 without
    probes."""
    probed = probes(row)
    best = bests.get(Threads(row["hardware"], probed.threads))
    if best and probed.states:
        return median(state.slowdown(best) for state in probed.states)
    return 1.0
