"""The plan on disk: nothing rewritten without need, no finished result lost."""

import json
import os

import pytest

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import write_csv
from mfulab.lab.planning import store
from mfulab.lab.planning.runs import Run
from mfulab.lab.runtime import endings
from mfulab.lab.tables.details import earlier


def a_run(**config):
    return Run(
        "bench_matmul", "kernel=torch", "test-4c/bench_matmul/kernel=torch", json.dumps(config)
    )


def finish(results, run, value):
    (results / run.folder / "row.csv").write_text(f"status,time_s\nok,{value}\n")


def row(results, run):
    return (results / run.folder / "row.csv").read_text()


def test_an_unchanged_config_is_not_touched(tmp_path):
    run = a_run(seed=1)
    store.write_run(run, tmp_path)
    config = tmp_path / run.folder / "config.json"
    os.utime(config, (1, 1))
    store.write_run(run, tmp_path)
    assert config.stat().st_mtime == 1


def test_a_changed_config_puts_the_finished_result_aside_and_back_again(tmp_path):
    store.write_run(a_run(seed=1), tmp_path)
    finish(tmp_path, a_run(), "1.5")
    store.write_run(a_run(seed=2), tmp_path)
    assert not (tmp_path / a_run().folder / "row.csv").exists()
    finish(tmp_path, a_run(), "2.5")
    store.write_run(a_run(seed=1), tmp_path)
    assert "1.5" in row(tmp_path, a_run())
    store.write_run(a_run(seed=2), tmp_path)
    assert "2.5" in row(tmp_path, a_run())


def test_a_result_older_than_the_code_does_not_come_back(tmp_path):
    store.write_run(a_run(seed=1), tmp_path)
    finish(tmp_path, a_run(), "1.5")
    store.write_run(a_run(seed=2), tmp_path)
    store.write_run(a_run(seed=1), tmp_path, lambda run: 2e10)
    assert not (tmp_path / a_run().folder / "row.csv").exists()


def test_a_row_whose_code_changed_is_kept_beside_the_new_one(tmp_path):
    """Once a version, however often its command is given; the page shows them by commit."""
    run, code_changed = a_run(), lambda run: 2e10
    for number, value in enumerate(("1.5", "2.5")):
        store.write_run(run, tmp_path)
        (tmp_path / run.folder / "row.csv").write_text(
            f"status,started_at,commit,time_s\nok,2026-01-0{number + 1},c{number},{value}\n"
        )
        store.write_run(run, tmp_path)
        assert [row["time_s"] for row in earlier(tmp_path / run.folder)] == ["1.5"][:number]
        store.write_run(run, tmp_path, code_changed)
        store.write_run(run, tmp_path, code_changed)
    assert [row["commit"] for row in earlier(tmp_path / run.folder)] == ["c0", "c1"]
    assert "2.5" in row(tmp_path, run), "Snakemake decides what is measured anew"


def test_a_finished_row_is_told_where_it_was_found_so_that_nobody_reads_it_again(tmp_path):
    assert not store.write_run(a_run(seed=1), tmp_path), "new"
    assert not store.write_run(a_run(seed=1), tmp_path), "planned before, without a row"
    finish(tmp_path, a_run(), "1.5")
    assert store.write_run(a_run(seed=1), tmp_path), "finished"
    assert not store.write_run(a_run(seed=2), tmp_path), "moved aside"
    assert store.write_run(a_run(seed=1), tmp_path), "came back"
    (tmp_path / a_run().folder / "row.csv").write_text("status,time_s\nok,1.")
    assert not store.write_run(a_run(seed=1), tmp_path), "cut off"


def test_a_finished_row_is_read_once_when_a_plan_is_written(tmp_path, monkeypatch):
    store.write_run(a_run(seed=1), tmp_path)
    finish(tmp_path, a_run(), "1.5")
    read = []
    is_complete = store.is_complete

    def counted(row, *arguments):
        read.append(row)
        return is_complete(row, *arguments)

    monkeypatch.setattr(store, "is_complete", counted)
    assert store.write_run(a_run(seed=1), tmp_path)
    assert read == [tmp_path / a_run().folder / "row.csv"]


@pytest.mark.parametrize(
    "text", ["", "status,time_s\n", "status,time_s\nok,1.", "status,time_s\nok\n", "status,ti"]
)
def test_a_truncated_row_is_measured_again(tmp_path, text):
    store.write_run(a_run(), tmp_path)
    (tmp_path / a_run().folder / "row.csv").write_text(text)
    store.write_run(a_run(), tmp_path)
    assert not (tmp_path / a_run().folder / "row.csv").exists()


@pytest.mark.parametrize("cell", ['"two\nlines"', "a\x0cb", "a\u2028b", "a\x85b", "x" * 200_000])
def test_a_row_with_anything_in_a_cell_is_complete(tmp_path, cell):
    path = tmp_path / "row.csv"
    path.write_text(f"status,message\nfailed,{cell}\n")
    assert store.is_complete(path)


def test_results_that_cannot_be_written_are_refused_before_anything_is_changed(tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(ConfigurationError, match="results/: cannot be written"):
        store.check_writable(tmp_path / "results")


@pytest.mark.parametrize(
    ("budget", "stays"), [(3.0, True), (2.0, True), (3.5, False), (float("inf"), False)]
)
def test_a_row_left_out_for_a_budget_gives_way_to_a_larger_one(tmp_path, budget, stays):
    store.write_run(a_run(), tmp_path)
    path = tmp_path / a_run().folder / "row.csv"
    ended_by = endings.ending(endings.LEFT_OUT, budget_min=3)
    write_csv(path, [{"status": "not_measured", "ended_by": ended_by}])
    kept = store.State.KEPT if stays else store.State.INCOMPLETE
    assert store.state(a_run(), tmp_path, budget_min=budget) is kept
    store.write_run(a_run(), tmp_path, budget_min=budget)
    assert path.exists() is stays


def test_a_row_left_out_is_no_result_to_keep(tmp_path):
    store.write_run(a_run(seed=1), tmp_path)
    (tmp_path / a_run().folder / "row.csv").write_text("status,message\nnot_measured,no time\n")
    assert store.state(a_run(seed=2), tmp_path) is store.State.NEW
    store.write_run(a_run(seed=2), tmp_path)
    assert not (tmp_path / store.SUPERSEDED).exists()
