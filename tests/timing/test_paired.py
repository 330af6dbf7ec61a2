"""Two commits in turn: the verdict is on ratios by pair, on machines that drift."""

import math
import random
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from support.said import numbers

import mfulab
from mfulab.cli import paired as command
from mfulab.cli.main import main
from mfulab.cli.paired import MOST_ROUNDS
from mfulab.core.said import Said
from mfulab.timing import paired
from mfulab.timing.paired import (
    MOST_PAIRS,
    NOTICEABLE,
    RANKED,
    Compared,
    _outside,
    is_open,
    judge,
    ratio_of,
)
from mfulab.timing.paired import in_rounds as measured_in_rounds

RUNS, ROUNDS = 40, 4


def pairs(
    change: float = 1.0, rounds: int = ROUNDS, drift: float = 0.0, slow: float = 0.0, seed: int = 0
):
    """Pairs of a machine whose processes vary by 3 %, whose speed drifts, and that is in a slow
    state for a while."""
    drawn, now = random.Random(seed), 0
    found: dict = {("bench_matmul", f"size={run}"): [] for run in range(RUNS)}
    for number in range(rounds):
        for run in found:
            times = {}
            for side in ("new", "old") if number % 2 else ("old", "new"):
                now += 1
                state = (1 + drift * now / (2 * RUNS * rounds)) * (
                    2.0 if slow and now % 100 < 100 * slow else 1.0
                )
                times[side] = (
                    state * (change if side == "new" else 1.0) * math.exp(drawn.gauss(0, 0.03))
                )
            found[run].append((times["old"], times["new"]))
    return found


@pytest.mark.parametrize(
    "kind", [{}, {"drift": 1.0}, {"slow": 0.3}], ids=["plain", "drift", "two states"]
)
def test_unchanged_code_is_seldom_called_different(kind):
    told = [each.verdict for seed in range(10) for each in judge(pairs(**kind, seed=seed))]
    assert sum(verdict in ("faster", "slower") for verdict in told) <= 0.05 * len(told)


def test_a_change_of_a_tenth_is_found_on_a_machine_that_drifts():
    told = [
        each.verdict
        for seed in range(5)
        for each in judge(pairs(1.10, rounds=6, drift=1.0, seed=seed))
    ]
    assert told.count("slower") >= 0.9 * len(told)
    faster = [each.verdict for each in judge(pairs(0.85, rounds=6, drift=1.0))]
    assert faster.count("faster") >= 0.9 * len(faster)


def in_rounds(
    change: float,
    seed: int,
    pair_s: float = 2.0,
    minutes: float = 5.0,
    between: float = 0.04,
    rounds: int = MOST_ROUNDS,
):
    """Eight runs, each pair of two processes that vary by `between` and of `pair_s`: (verdicts,
    seconds spent)."""
    drawn, spent = random.Random(seed), [0.0]
    runs = [("profile_step", f"size={number}") for number in range(8)]

    def measure(run, swapped):
        spent[0] += pair_s
        return tuple(factor * math.exp(drawn.gauss(0, between)) for factor in (1.0, change))

    found = measured_in_rounds(runs, measure, {}, rounds, minutes, 0.02, now=lambda: spent[0])
    return [each.verdict for each in found], spent[0]


@pytest.mark.parametrize("between", [0.01, 0.04, 0.15])
def test_stopping_early_calls_few_unchanged_runs_different(between):
    same = [
        verdict
        for seed in range(60)
        for verdict in in_rounds(1.0, seed, pair_s=0.6, between=between)[0]
    ]
    assert sum(verdict in ("faster", "slower") for verdict in same) <= 0.05 * len(same)


@pytest.mark.parametrize(("between", "change"), [(0.02, 1.05), (0.04, 1.10)])
def test_small_changes_are_found_within_the_budget(between, change):
    found = [in_rounds(change, seed, 4.4, between=between) for seed in range(20)]
    verdicts = [verdict for each, _ in found for verdict in each]
    assert verdicts.count("slower") >= {1.05: 0.6, 1.10: 0.9}[change] * len(verdicts)
    assert max(spent for _, spent in found) <= 300


def test_a_change_that_is_plain_ends_a_comparison_sooner():
    changed = [in_rounds(1.25, seed) for seed in range(20)]
    found = [verdict for verdicts, _ in changed for verdict in verdicts].count("slower")
    assert found >= 0.95 * 8 * len(changed)
    assert (
        max(spent for _, spent in changed)
        <= 160
        > 1.5 * sum(spent for _, spent in changed) / len(changed)
    )


@pytest.mark.parametrize("count", [3, 7, RANKED, 17])
@pytest.mark.parametrize("slow", [0.0, 0.15])
def test_the_interval_of_a_ratio_covers_it(count, slow):
    drawn = random.Random(count)

    def time_s() -> float:
        return math.exp(drawn.gauss(0, 0.04)) * (2 if drawn.random() < slow else 1)

    bounds = [ratio_of([1.1 * time_s() / time_s() for _ in range(count)])[1:] for _ in range(1000)]
    assert sum(low <= 1.1 <= high for low, high in bounds) >= 930


def test_one_pair_that_is_far_off_moves_a_ratio_little():
    even = [0.98, 0.99, 1.0, 1.01, 1.02] * 3
    ratio, low, high = ratio_of(even)
    off, off_low, off_high = ratio_of([*even, 3.0])
    assert (ratio, low, high) == pytest.approx((1.0, 0.99, 1.01), abs=0.003)
    assert (off, off_low, off_high) == pytest.approx((1.0, 0.99, 1.015), abs=0.006)


def test_ranks_leave_as_many_means_outside_as_the_published_table_says():
    """Two-sided 5 % points of Wilcoxon's signed ranks, as any table of them has."""
    assert [_outside(count) for count in (8, 10, 15, 20, 25)] == [3, 8, 25, 52, 89]


def test_an_early_verdict_needs_a_wider_interval():
    run = ("profile_step", "a")
    assert is_open(Compared(*run, "slower", 1.0, 1.1, 1.1, 1.03, 1.17), 0.02)
    assert not is_open(Compared(*run, "slower", 1.0, 1.1, 1.1, 1.05, 1.15), 0.02)
    assert is_open(Compared(*run, "ambiguous", 1.0, 1.1, 1.1), 0.02)


def test_no_pair_is_begun_that_would_end_after_the_budget():
    verdicts, spent_s = in_rounds(1.0, 0, pair_s=11.0, minutes=2.0)
    assert 100 < spent_s <= 120
    assert len(verdicts) == 8
    verdicts, spent_s = in_rounds(1.0, 0, pair_s=11.0, minutes=0.5)
    assert (verdicts.count("ambiguous"), verdicts.count("not comparable")) == (3, 5)


def test_one_pair_has_no_interval_and_none_is_not_comparable():
    run, other = ("profile_step", "a"), ("profile_step", "b")
    killed = Said("side_without_row", {"side": "old"})
    one, none = judge({run: [(1.0, 2.0), (None, 2.0)], other: [(None, 1.0)]}, {other: killed})
    assert (one.verdict, one.ratio, one.ratio_low) == ("ambiguous", 2.0, None)
    assert one.because == Said("one_pair_no_interval")
    assert (none.verdict, none.because) == ("not comparable", killed)


def test_sides_take_turns_in_going_first(monkeypatch):
    asked = []

    def measure(side, run):
        asked.append(side)
        return 1.0, {}

    monkeypatch.setattr(command, "measured", measure)
    for number in range(4):
        assert command._pair(("A", "B"), {}, ("profile_step", "a"), bool(number % 2)) == (1.0, 1.0)
    assert "".join(asked) == "ABBAABBA"


def test_each_round_has_an_order_of_its_own():
    runs = [("profile_step", f"size={number}") for number in range(9)]
    asked = []

    def measure(run, _):
        asked.append(run)
        return 1.0, 1.0

    measured_in_rounds(runs, measure, {}, 4, 1.0, 0.02, now=lambda: 0.0)
    orders = [tuple(asked[first : first + 9]) for first in range(0, 36, 9)]
    assert len(set(orders)) == 4
    assert all(set(order) == set(runs) for order in orders)


def test_a_commit_that_is_none_and_too_few_rounds_are_said_at_once(capsys, monkeypatch, tmp_path):
    assert main(["paired", "--base", "no-such-commit"]) == 2
    assert (
        "--base=no-such-commit: no folder of a checkout, and git says: " in capsys.readouterr().err
    )
    assert main(["paired", "--base", str(tmp_path), "--rounds", "1"]) == 2
    assert "--rounds=1: from 2, which give an interval, to 60." in capsys.readouterr().err
    assert main(["paired", "--base", str(tmp_path), "--minutes", "0"]) == 2
    assert "Invalid value for '--minutes': '0' is no number from 0.001" in capsys.readouterr().err


def test_the_second_process_of_a_run_is_measured_where_one_is_planned(tmp_path, monkeypatch):
    """The first traces."""
    asked = []

    def plan(words, **options):
        assert words[-1] == "replicates=2"
        for name in ("profile_step/a", "profile_step/a,replicate=2", "bench_matmul/b"):
            folder = Path(words[3]) / "here" / name
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
        return SimpleNamespace(returncode=0)

    def measure(words, **options):
        asked.append(Path(words[-1]).parent.name)
        return SimpleNamespace(returncode=0)

    side = command.Side(tmp_path, tmp_path / "runs")
    monkeypatch.setattr(command.subprocess, "run", plan)
    runs = command.planned(side, [])
    assert runs == [("profile_step", "a"), ("bench_matmul", "b")]
    monkeypatch.setattr(command.subprocess, "run", measure)
    assert [command.measured(side, each) for each in runs] == [(None, {})] * 2
    assert asked == ["a,replicate=2", "b"]


def test_a_process_that_left_no_row_or_a_failed_one_has_no_time(tmp_path, monkeypatch):
    config = tmp_path / "here/profile_step/a/config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    side = command.Side(tmp_path, tmp_path)

    def pretend(text: str | None):
        def run(*words, **options):
            if text:
                config.with_name("row.csv").write_text(text)
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(command.subprocess, "run", run)
        return command.measured(side, ("profile_step", "a"))

    assert pretend(None) == (None, {})
    time_s, row = pretend("status,message,time_s\nfailed,killed,\n")
    assert (time_s, row["status"], row["message"]) == (None, "failed", "killed")
    assert pretend("status,message,time_s\nok,,0.5\n")[0] == 0.5
    assert pretend("status,message,time_s,median_time_s,time_p5_s\nok,,0.5,0.6,0.4\n")[0] == 0.4


@pytest.mark.parametrize(
    ("row", "key"), [({}, "side_without_row"), ({"status": "failed"}, "side_untimed")]
)
def test_a_side_without_a_time_is_the_pairs_reason(row, key, monkeypatch):
    run = ("profile_step", "a")
    reasons: dict = {}
    monkeypatch.setattr(command, "measured", lambda side, _: (None, row) if side else (1.0, {}))
    assert command._pair((0, 1), reasons, run, False) == (1.0, None)
    assert numbers(reasons[run], key)["side"] == "new"


def noisy(
    change: float, seed: int, minutes: float = 5.0, sigma: float = 0.03, outliers: float = 0.05
):
    """A gate on a command of 1 s, on a machine whose speed wanders slowly and that some runs meet
    at work."""
    drawn, clock, state = random.Random(seed), [0.0], [0.0]

    def timed(side: int) -> float:
        state[0] = 0.95 * state[0] + drawn.gauss(0, 0.03)
        late = drawn.uniform(1.2, 3) if drawn.random() < outliers else 1.0
        took = (change if side else 1.0) * late * math.exp(state[0] + drawn.gauss(0, sigma))
        clock[0] += took
        return took

    def pair(_, swapped):
        times = {side: timed(side) for side in ((1, 0) if swapped else (0, 1))}
        return times[0], times[1]

    (compared,) = measured_in_rounds(
        [("gate", "b")], pair, {}, MOST_PAIRS, minutes, NOTICEABLE, now=lambda: clock[0]
    )
    return compared, clock[0]


def test_a_gate_on_a_noisy_machine_calls_few_unchanged_commands_different_and_finds_a_twentieth():
    unchanged = [noisy(1.0, seed)[0].verdict for seed in range(200)]
    assert sum(verdict in ("faster", "slower") for verdict in unchanged) <= 0.05 * len(unchanged)
    assert unchanged.count("same") >= 0.5 * len(unchanged)
    slower = [noisy(1.05, seed) for seed in range(100)]
    assert [each.verdict for each, _ in slower].count("slower") >= 0.9 * len(slower)
    assert max(spent for _, spent in slower) <= 306
    faster = [noisy(1 / 1.05, seed)[0].verdict for seed in range(100)]
    assert faster.count("faster") >= 0.9 * len(faster)


def test_far_more_pairs_than_are_counted_out_leave_the_quantile_of_a_normal_outside():
    exact = [_outside(count) for count in (40, 60)]
    _outside.cache_clear()
    with patch.object(paired, "EXACT", 1):
        assert [_outside(count) for count in (40, 60)] == pytest.approx(exact, abs=2)
    _outside.cache_clear()


def test_callables_are_compared_a_call():
    compared = mfulab.gate(
        lambda: sum(range(500)), lambda: sum(range(4000)), minutes=1.0, sample_s=0.002
    )
    assert (compared.verdict, compared.old_s < compared.new_s) == ("slower", True)
    assert compared.ratio_low <= compared.ratio <= compared.ratio_high
