"""Repeatability of numbers, on simulated machines that repeat and that do not."""

import json
import math
import random

import pytest

from mfulab.cli.main import main
from mfulab.core.files import write_csv
from mfulab.core.language import Texts
from mfulab.lab.tables import compare, replicates
from mfulab.lab.tables.compare import trust


def processes(
    runs: int = 40, count: int = 6, between: float = 0.04, sweeps: float = 0.0, seed: int = 0
) -> list[list[float]]:
    """Medians of each process: `between` varies each, `sweeps` three processes in a row
    together."""
    drawn = random.Random(seed)
    found = []
    for _ in range(runs):
        levels = [drawn.gauss(0, sweeps) for _ in range(count // 3 + 1)]
        found.append(
            [0.01 * math.exp(levels[at // 3] + drawn.gauss(0, between)) for at in range(count)]
        )
    return found


@pytest.mark.parametrize("between", [0.01, 0.05, 0.15])
def test_a_machine_that_varies_as_its_processes_do_is_told_to_be_trustworthy(between):
    measured = [processes(between=between, seed=seed) for seed in range(5)]
    found = [trust(each) for each in measured]
    assert all(each.false_percent <= 5 and each.covered_percent >= 95 for each in found)
    assert [each.verdicts for each in found] == [40] * 5
    assert all(each.spread_percent == pytest.approx(100 * between, rel=0.5) for each in found)
    assert all(replicates.drift(each) < 0.7 * between for each in measured)


def test_a_machine_that_changes_between_sweeps_is_found_out_and_then_allowed_for():
    times = [run for seed in range(5) for run in processes(between=0.01, sweeps=0.1, seed=seed)]
    found = trust(times)
    assert found.false_percent > 20
    drift = replicates.drift(times)
    assert drift == pytest.approx(0.1, rel=0.3)
    told = []
    for first, *others in map(replicates.measurements, times):
        pair = []
        for each in (first, others[0]):
            columns = replicates.interval_columns(each, 0.0001)
            exact = compare.Interval(
                sorted(each)[1], columns["time_ci_low_s"], columns["time_ci_high_s"], True
            )
            pair.append(compare.widened(exact, drift))
        told.append(compare.verdict(*pair)[0])
    assert sum(verdict in ("faster", "slower") for verdict in told) <= 0.05 * len(told)


def test_few_processes_tell_a_spread_and_nothing_of_verdicts():
    found = trust(processes(count=3))
    seen = (found.runs, found.verdicts, found.false_percent, found.covered_percent)
    assert seen == (40, 0, None, None)
    assert found.spread_percent == pytest.approx(4, rel=0.5)
    assert trust([[0.01]]).runs == 0
    assert trust([]).spread_percent is None
    assert replicates.drift(processes(count=3)) is None


def test_a_run_holds_measurements_of_three_processes_or_of_two():
    assert [
        list(map(len, replicates.measurements([1.0] * count))) for count in (1, 3, 4, 5, 6, 9, 11)
    ] == [*([], [], [2, 2], [2, 2], [3, 3], [3, 3, 3], [3, 3, 3])]


@pytest.mark.parametrize("cell", [None, "", "[", "[1, -1]", '{"a": 1}', '["x"]', "3"])
def test_times_that_were_not_kept_are_none(cell):
    assert [time for time in replicates.times_of({"process_times_s": cell}) if time <= 0] == []


def test_two_folders_say_whether_the_machine_between_sweeps_is_in_their_intervals(tmp_path, capsys):
    for folder in ("old", "new"):
        for run in range(8):
            for replicate, time in enumerate((1.0, 1.01, 0.99, 1.02, 1.0, 0.98), 1):
                name = f"size={run}" + (f",replicate={replicate}" if replicate > 1 else "")
                path = tmp_path / folder / "results/here/bench_matmul" / name
                path.mkdir(parents=True)
                path.joinpath("config.json").write_text(json.dumps({}))
                write_csv(
                    path / "row.csv",
                    [
                        {
                            "hardware": "here",
                            "run": name,
                            "status": "ok",
                            "time_s": time * (1 + run / 9),
                        }
                    ],
                )
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    said = Texts(section="compare")("drift_known", percent=0.0)
    assert said.partition("±")[0] in capsys.readouterr().out
