"""`mfulab refine` where a process leaves no row, or nothing was measured; the workflow's test of replicates runs it."""

from types import SimpleNamespace

import pytest

from mfulab.cli import refine
from mfulab.cli.main import main
from mfulab.core.files import write_json
from mfulab.lab.runtime import client


@pytest.mark.parametrize(
    ("code", "most_s", "says"),
    [("raise SystemExit(9)", 60, "without a row"), ("while True: pass", 1, "after 1 s")],
)
def test_a_process_that_leaves_no_row_is_told_once_and_leaves_nothing(
    tmp_path, monkeypatch, capsys, code, most_s, says
):
    folder = tmp_path / "results/here/profile_step/model=a"
    write_json(folder / "config.json", {"replicate": 1})
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/run.py").write_text(code)
    row = {"run": "model=a", "precision_percent": 90.0, "process_s": 0.02, "replicates": 2}
    monkeypatch.setattr(refine, "_least_known", lambda *_: [("profile_step", row)])
    monkeypatch.setattr(refine, "SHORTEST_S", most_s)
    monkeypatch.setenv(client.SOCKET, "")  # no worker
    assert main(["refine", "here", "--results", str(tmp_path / "results")]) == refine.UNDECIDED
    assert capsys.readouterr().err == f"model=a,replicate=2: ended {says}; not tried again\n"
    assert [path.name for path in folder.parent.iterdir()] == ["model=a"]


def test_without_results_there_is_nothing_to_refine(tmp_path, capsys):
    assert main(["refine", "here", "--results", str(tmp_path)]) == 2
    assert "nothing was measured" in capsys.readouterr().err


def test_a_run_that_was_not_steady_gets_further_processes():
    known = {"status": "ok", "precision_percent": 5.0, "replicates": 2, "left_out_replicates": 0, "process_s": 1.0}
    rows = [{"run": run, "steady": steady, **known} for run, steady in (("a", True), ("b", False), ("c", None))]
    records = {"profile": rows, "matmul": [known]}
    assert [row["run"] for _, row in refine._least_known(records, "here", 25.0, 8)] == ["b"]


def test_runs_of_one_process_are_named_and_leave_the_answer_open(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    row = {"run": "a", "status": "ok", "replicates": 1, "left_out_replicates": 0, "process_s": 1.0, "steady": False}
    rows = [row | {"precision_percent": None}, row | {"run": "b", "status": "failed", "precision_percent": None}]
    gathered = []
    records = SimpleNamespace(records={"profile": rows, "matmul": []})
    monkeypatch.setattr(refine, "gather", lambda *where: gathered.append(where) or records)
    monkeypatch.setenv(client.SOCKET, "")  # no worker
    assert main(["refine", "here", "--results", str(tmp_path)]) == refine.UNDECIDED
    assert "\n1 runs of one process have no interval: replicates=2" in capsys.readouterr().out
    assert len(gathered) == 1, "the rows of the last look are those that are told of"
