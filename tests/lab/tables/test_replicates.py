"""Intervals from processes apart in time, on machines with states, drift and outliers."""

import json
import math
import random
import statistics
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.said import numbers
from support.slow import few

from mfulab.core.language.verdicts import message
from mfulab.core.replicates import numbered, replicate_of, turn
from mfulab.core.said import Said
from mfulab.lab.tables import compare, replicates
from mfulab.lab.tables.replicates import interval_columns, merge_rows
from mfulab.timing.statistics import undisturbed, usual_variance

RUN = ("bench_matmul", "a")
RUNS, SWEEPS, TRUE_S = 46, 12, 0.010


@dataclass
class Machine:
    """Its processes differ: `between` and `within` are relative spreads, `slow` the share at half
    speed.

    Further: the amplitude of a `drift`, the mean of what neighbours `add` to a window, the share of
    processes at a `peak` 1.3 times as slow, and the share that is `fast`, 1.3 times.
    """

    seed: int
    between: float = 0.05
    within: float = 0.01
    slow: float = 0.0
    drift: float = 0.0
    add: float = 0.0
    peak: float = 0.0
    fast: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.measured = 0

    def windows(self, true_s: float, count: int = 2) -> list[float]:
        """The windows of one process."""
        self.measured += 1
        level = true_s * math.exp(self.random.gauss(0, self.between))
        level *= 2.0 if self.random.random() < self.slow else 1.0
        level *= 1.3 if self.peak and self.random.random() < self.peak else 1.0
        level /= 1.3 if self.fast and self.random.random() < self.fast else 1.0
        level *= 1 + self.drift * math.sin(self.measured / 40)
        noise = [math.exp(self.random.gauss(0, self.within)) for _ in range(count)]
        return [
            level * each * (1 + (self.add and self.random.expovariate(1 / self.add)))
            for each in noise
        ]


KINDS = {
    "plain": {},
    "states": {"slow": 0.4, "between": 0.03},
    "drift": {"drift": 0.1, "between": 0.03},
    "one-sided": {"add": 0.3, "between": 0.03},
    "two peaks": {"peak": 0.5, "between": 0.03},
    "rare fast": {"fast": 0.06, "between": 0.03},
}


OK = {"hardware": "x", "recorded": False, "status": "ok", "message": ""}


def sweep(
    machine: Machine, replicates: int = 3, changes: dict[int, float] | None = None, runs: int = RUNS
) -> list[dict]:
    rows: list[dict] = []
    for replicate in range(1, replicates + 1):  # other runs lie between two processes of one
        for run in range(runs):
            factor = (changes or {}).get(run, 1.0)
            name = f"size={run}" + (f",replicate={replicate}" if replicate > 1 else "")
            measured = both(machine.windows(factor * TRUE_S * (1 + run % 7)))
            rows.append({**OK, "run": name, **measured})
    return rows


def both(windows: list[float]) -> dict[str, float]:
    """What one process reports: its fastest window, and its median."""
    return {"time_s": min(windows), "median_time_s": statistics.median(windows)}


def verdicts(old: list[dict], new: list[dict], noticeable: float = compare.NOTICEABLE) -> list[str]:
    before, after = (
        {("bench_matmul", row["run"]): row for row in merge_rows(rows)} for rows in (old, new)
    )
    return [each.verdict for each in compare.verdicts(before, after, noticeable)]


@pytest.mark.parametrize(
    "kind",
    [
        *({"between": 0.02}, {"between": 0.15}, {"slow": 0.05}, {"between": 0.003, "within": 0.05}),
        *few(KINDS.values(), 2),
    ],
    ids=["quiet", "loud", "a slow state", "noise within", *KINDS],
)
def test_the_same_code_measured_twice_is_seldom_called_different(kind):
    told = [
        verdict
        for seed in range(SWEEPS)
        for verdict in verdicts(
            sweep(Machine(2 * seed, **kind)), sweep(Machine(2 * seed + 1, **kind))
        )
    ]
    assert sum(verdict in ("faster", "slower") for verdict in told) <= 0.05 * len(told)


@pytest.mark.parametrize("kind", few(sorted(KINDS), 2))
def test_of_four_processes_or_more_few_unchanged_runs_are_called_different(kind):
    told = [
        verdict
        for seed in range(4)
        for count in (4, 5, 8)
        for verdict in verdicts(
            *(sweep(Machine(2 * seed + each, **KINDS[kind]), count, runs=23) for each in (0, 1))
        )
    ]
    assert sum(verdict in ("faster", "slower") for verdict in told) <= 0.05 * len(told)


def test_most_unchanged_runs_of_a_quiet_machine_are_called_the_same():
    """At a noticeable difference of 10 %, of five processes that differ by 3 %; intervals of each
    time say less."""
    old, new = (sweep(Machine(seed, between=0.03), 5) for seed in (0, 1))
    assert verdicts(old, new, 0.1).count("same") >= 0.8 * RUNS
    before, after = (merge_rows(rows) for rows in (old, new))
    alone = [
        compare.verdict(*map(compare.interval, pair), 0.1)[0]
        for pair in zip(before, after, strict=True)
    ]
    assert alone.count("same") < 0.6 * RUNS


@pytest.mark.parametrize("kind", ["states", "rare fast"])
def test_two_processes_are_seldom_called_slower_than_eight(kind):
    """Both of two may meet a slow state, and one of eight a rare fast one."""
    told = []
    for seed in range(SWEEPS):
        many, few = (
            merge_rows(sweep(Machine(2 * seed + (n == 2), **KINDS[kind]), n, runs=23))
            for n in (8, 2)
        )
        told += [
            compare._compare(RUN, *each, 0.02, 0.0, None).verdict
            for each in zip(many, few, strict=True)
        ]
    assert sum(verdict in ("faster", "slower") for verdict in told) <= 0.05 * len(told)


def test_a_median_and_an_undisturbed_time_are_not_compared():
    row = {"status": "ok", "time_s": 1.0, "median_time_s": 1.2}
    row |= {"time_ci_low_s": 0.9, "time_ci_high_s": 1.1}
    before = row | {"median_time_s": None}
    assert compare._compare(RUN, row, row, 0.02, 0.0, None).verdict == "ambiguous"
    found = compare._compare(RUN, before, row, 0.02, 0.0, None)
    older = Said("side_of_medians", {"side": "old"})
    assert (found.verdict, found.because) == ("not comparable", older)


@pytest.mark.parametrize("between", [0.02, 0.05, 0.15])
def test_intervals_cover_the_truth(between):
    covered = []
    for seed in range(SWEEPS):
        for row in merge_rows(sweep(Machine(seed, between=between))):
            true_s = (
                TRUE_S * (1 + int(row["run"].partition("=")[2]) % 7) * math.exp(-1.2816 * between)
            )
            covered.append(row["time_ci_low_s"] <= true_s <= row["time_ci_high_s"])
    assert sum(covered) >= 0.9 * len(covered)


# one sweep does not see what drifts slower than it lasts
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"drift"}))
def test_intervals_of_eight_processes_cover_the_undisturbed_time_and_repeat(kind):
    """The undisturbed time is what the machine's fastest tenth of processes takes, over more than
    any sweep has."""
    apart: dict[str, list[float]] = {"time_s": [], "median_time_s": []}
    covered = []
    many = Machine(99, **KINDS[kind])
    truth_s = undisturbed(min(many.windows(TRUE_S)) for _ in range(4000))
    for seed in range(SWEEPS):
        first, second = (
            merge_rows(sweep(Machine(2 * seed + each, **KINDS[kind]), 8, runs=14))
            for each in (0, 1)
        )
        for old, new in zip(first, second, strict=True):
            true_s = truth_s * (1 + int(old["run"].partition("=")[2]) % 7)
            covered.append(old["time_ci_low_s"] <= true_s <= old["time_ci_high_s"])
            for name, found in apart.items():
                found.append(abs(math.log(new[name] / old[name])))
    assert sum(covered) >= 0.9 * len(covered)
    if kind in ("states", "one-sided", "two peaks"):
        assert 2 * statistics.median(apart["time_s"]) < statistics.median(apart["median_time_s"])
    assert statistics.median(apart["time_s"]) < 0.06


def test_what_the_machine_cost_is_the_gap_between_both_times():
    rows = sweep(Machine(1), replicates=3, runs=1)
    for row, time, met in zip(rows, (1.0, 1.5, 2.0), (1.1, 1.6, 2.4), strict=True):
        row |= {"time_s": time, "median_time_s": met, "reference_time_s": 2 * time}
    (row,) = merge_rows([dict(row) for row in rows])
    assert (row["time_s"], row["median_time_s"]) == pytest.approx((1.1, 1.6))
    assert row["machine_cost_percent"] == pytest.approx(100 * (1.6 / 1.1 - 1))
    assert row["reference_time_s"] == pytest.approx(2 * row["time_s"])
    (gpu,) = merge_rows([dict(row) for row in rows], gpus={"x"})
    assert (gpu["time_s"], gpu["median_time_s"], gpu["machine_cost_percent"]) == (1.5, 1.6, None)


def test_a_change_that_is_larger_than_the_intervals_is_found():
    changes = dict.fromkeys(range(0, RUNS, 2), 1.10)
    found = []
    for seed in range(SWEEPS):
        old = sweep(Machine(2 * seed, between=0.008))
        new = sweep(Machine(2 * seed + 1, between=0.008), changes=changes)
        found += [verdict for run, verdict in enumerate(verdicts(old, new)) if run in changes]
    assert found.count("slower") >= 0.9 * len(found)


def test_windows_in_a_row_would_have_called_noise_a_change():
    """The reason for all this: an interval from within one process covers its own state alone."""
    machine, missed = Machine(1), 0
    for _ in range(200):
        level = TRUE_S * math.exp(machine.random.gauss(0, machine.between))
        windows = [level * math.exp(machine.random.gauss(0, machine.within)) for _ in range(5)]
        half = 2.776 * statistics.stdev(windows) / math.sqrt(5)
        missed += abs(statistics.fmean(windows) - TRUE_S) > half
    assert missed > 100


def test_one_process_gives_no_interval():
    (row,) = merge_rows(sweep(Machine(1), replicates=1, runs=1))
    found = (row["replicates"], row["time_ci_low_s"], row["between_spread_percent"])
    assert found == (1, None, None)
    interval = compare.interval(row)
    verdict, because = compare.verdict(interval, interval)
    assert (verdict, because.key) == ("ambiguous", "measured_by_one")


@pytest.mark.parametrize("killed", [0, 1])
def test_a_replicate_that_was_killed_is_told_and_the_others_stand(killed):
    rows = sweep(Machine(1), replicates=3, runs=1)
    rows[killed] |= {"status": "failed", "message": "killed", "time_s": None}
    (row,) = merge_rows(rows)
    assert (row["run"], row["status"], row["replicates"]) == ("size=0", "ok", 2)
    lost = numbers(row["message"], "replicates_lost")
    assert (lost["count"], lost["total"], lost["status"]) == (1, 3, "failed")
    assert row["time_ci_low_s"] < row["time_s"] < row["time_ci_high_s"]


def test_a_run_that_failed_is_one_failed_row():
    rows = sweep(Machine(1), replicates=3, runs=1)
    for row in rows:
        row |= {"status": "out_of_memory", "message": "too large", "time_s": None}
    (row,) = merge_rows(rows)
    found = (row["status"], message(row["message"]), row["replicates"])
    assert found == ("out_of_memory", "too large", None)


def test_replicates_that_two_experiments_asked_for_are_one_run():
    rows = sweep(Machine(1), replicates=6, runs=1)
    for number, row in enumerate(rows):
        row["experiment"] = "quickstart" if number < 2 else "repeat"
    (row,) = merge_rows(rows)
    assert (row["replicates"], row["experiment"]) == (6, "quickstart")


@pytest.mark.parametrize(("warm", "steady"), [(2, True), (1, False)])
def test_numbers_are_medians_and_durations_sums(warm, steady):
    rows = sweep(Machine(1), replicates=3, runs=1)
    for number, row in enumerate(rows):
        row |= {"process_s": 2.0, "steps": 10, "batch_size": 4}
        row |= {"utilization_percent": 90.0 + number, "steady": number < warm}
        row["kernel_busy_percent"] = 50.0 if number == 0 else None
    (row,) = merge_rows(rows)
    assert (row["process_s"], row["steps"], row["batch_size"]) == (6.0, 30, 4)
    found = (row["utilization_percent"], row["kernel_busy_percent"], row["steady"])
    assert found == (91.0, 50.0, steady)


def test_recorded_rows_keep_their_own_interval():
    row = OK | {"recorded": True, "run": "a", "time_s": 1.0, "time_ci_low_s": 0.9}
    assert merge_rows([dict(row)]) == [row]


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=9), st.floats(1e-6, 1e6))
def test_an_interval_holds_its_time_and_scales_with_the_unit(times, factor):
    columns = interval_columns(times, None)
    assert columns["time_ci_low_s"] <= undisturbed(times) * (1 + 1e-12)
    assert columns["time_ci_high_s"] >= undisturbed(times) * (1 - 1e-12)
    scaled = interval_columns([factor * time for time in times], None)
    assert scaled["time_ci_low_s"] == pytest.approx(factor * columns["time_ci_low_s"], rel=1e-6)


def test_a_wider_spread_of_the_machine_widens_every_interval():
    lengths = []
    for usual in (None, 1e-4, 1e-2, 1.0):
        columns = interval_columns([1.0, 1.05, 1.1], usual)
        lengths.append(columns["time_ci_high_s"] / columns["time_ci_low_s"])
    assert all(before < after for before, after in pairwise(lengths[1:]))


def test_the_usual_spread_needs_runs_and_is_not_moved_by_a_few_disturbed_ones():
    quiet = [(0.01, 2)] * 20
    assert usual_variance(quiet[:7]) is None
    assert usual_variance([*quiet, (9.0, 2), (9.0, 2)]) == usual_variance(quiet)


def probed(row: dict, slowdown: float) -> dict:
    states = {"product_s": [3e-4 * slowdown] * 2, "copy_s": [1e-3 * slowdown] * 2}
    states |= {"threads": 2, "at_s": [1.0, 2.0]}
    return row | {"probes": json.dumps(states)}


def test_a_process_in_a_slow_state_widens_the_interval_by_what_it_may_have_lost():
    rows = [probed(row, 1.0) for row in sweep(Machine(1, between=0.01), runs=10)]
    quiet = merge_rows(rows)[3]
    assert (quiet["disturbed_replicates"], quiet["slowdown"]) == (0, pytest.approx(1.0))
    slow = [
        probed(row | {"time_s": 2 * row["time_s"]}, 2.0) if row["run"].startswith("size=3") else row
        for row in rows
    ]
    told = merge_rows(slow)[3]
    assert (told["disturbed_replicates"], told["slowdown"]) == (3, pytest.approx(2.0))
    assert told["time_ci_low_s"] < quiet["time_s"] < told["time_s"] < told["time_ci_high_s"]
    assert told["precision_percent"] > 40
    assert len(json.loads(told["probes"])["at_s"]) == 6


def states_seen(seed: int, replicates: int = 3) -> list[dict]:
    """A sweep on a machine that is 1.7 times as slow for a quarter of its processes, as the probe
    beside them sees."""
    machine, chance = Machine(seed, between=0.02), random.Random(seed)
    rows = []
    for row in sweep(machine, replicates):
        slow = 1.7 if chance.random() < 0.25 else 1.0
        rows.append(probed(row | {"time_s": row["time_s"] * slow}, slow * chance.uniform(1.0, 1.1)))
    return rows


def test_processes_that_met_a_slow_state_are_left_out_where_two_did_not():
    told, covered, flagged, widths, all_widths = [], [], [], [], []
    for seed in range(SWEEPS):
        old, new = states_seen(2 * seed), states_seen(2 * seed + 1)
        told += verdicts(old, new)
        for row in merge_rows(old):
            true_s = TRUE_S * (1 + int(row["run"].partition("=")[2]) % 7)
            covered.append(row["time_ci_low_s"] <= true_s <= row["time_ci_high_s"])
            flagged.append(row["disturbed_replicates"] > 0)
            widths.append(row["precision_percent"])
            assert row["replicates"] + row["left_out_replicates"] == 3
            assert flagged[-1] or len(json.loads(row["process_times_s"])) == row["replicates"] >= 2
        all_widths += [
            row["precision_percent"] for row in merge_rows([row | {"probes": None} for row in old])
        ]
    assert sum(verdict in ("faster", "slower") for verdict in told) <= 0.05 * len(told)
    assert sum(covered) >= 0.9 * len(covered)
    assert sum(flagged) < 0.25 * len(flagged)
    assert statistics.median(widths) < 0.5 * statistics.median(all_widths)


def test_the_first_process_is_left_out_of_numbers_but_brings_what_only_it_has():
    rows = [probed(row | {"traced": None}, 1.0) for row in sweep(Machine(1), runs=1)]
    rows[0] = probed(rows[0] | {"traced": 7.5, "process_s": 1.0, "time_s": 9.0}, 2.0)
    rows[1]["process_s"] = rows[2]["process_s"] = 2.0
    (row,) = merge_rows(rows)
    assert (row["replicates"], row["left_out_replicates"], row["disturbed_replicates"]) == (2, 1, 0)
    assert row["time_s"] == undisturbed([rows[1]["time_s"], rows[2]["time_s"]])
    assert (row["traced"], row["process_s"]) == (7.5, 5.0)


def test_a_ceiling_of_a_cpu_is_the_best_of_its_processes_and_has_an_interval():
    names = ("ceiling=fp32", "ceiling=fp32,replicate=2", "ceiling=fp32,replicate=3")
    rows = [
        OK | {"run": name, "measured_tflop_s": rate, "measured_gb_s": None, "threads": 2}
        for name, rate in zip(names, (0.10, 0.09, 0.11), strict=True)
    ]
    (cpu,) = merge_rows([dict(row) for row in rows], replicates.MEASURED["ceilings"])
    assert (cpu["measured_tflop_s"], cpu["replicates"]) == (0.11, 3)
    assert cpu["measured_ci_low_tflop_s"] < 0.11 < cpu["measured_ci_high_tflop_s"]
    assert cpu.get("measured_ci_low_gb_s") is None
    (gpu,) = merge_rows([row | {"threads": None} for row in rows], replicates.MEASURED["ceilings"])
    assert gpu["measured_tflop_s"] == 0.10


@given(st.integers(2, 9), st.integers(0, 5))
def test_replicates_are_measured_round_by_round_and_each_round_in_an_order_of_its_own(runs, seed):
    names = [numbered(f"size={run}", replicate) for replicate in (1, 2, 3) for run in range(runs)]
    order = sorted(names, key=lambda name: -turn(name, seed))
    rounds = [order[at : at + runs] for at in range(0, len(order), runs)]
    assert [{replicate_of(name) for name in each} for each in rounds] == [{1}, {2}, {3}]
    assert all(0 < turn(name, seed) < 1 for name in names)


def test_the_order_of_a_round_is_the_seeds():
    names = [f"size={run}" for run in range(9)]
    orders = {tuple(sorted(names, key=lambda name: turn(name, seed))) for seed in range(5)}
    assert len(orders) == 5
