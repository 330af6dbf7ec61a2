"""`mfulab refine` where a process leaves no row, or nothing was measured."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mfulab.cli import refine
from mfulab.cli.main import main
from mfulab.core.files import write_json, write_text
from mfulab.lab.planning import again, store
from mfulab.lab.planning.runs import Run, config_text
from mfulab.lab.runtime import client

CONFIG = {"model": {"_target_": "torch.nn.Flatten"}, "replicate": 1}
FOLDER = "here/profile_step/model=a"
ROW = {"run": "model=a", "precision_percent": 90.0, "process_s": 0.02, "replicates": 2}


@pytest.fixture
def poorly_known(tmp_path, monkeypatch):
    """A run whose row says that it is known least, measured with the config that the plan gives;
    gives the results and the plan."""
    planned = again.Again()
    planned.add([Run("profile_step", "model=a", FOLDER, config_text(CONFIG))], tmp_path)
    monkeypatch.setattr(refine.again, "planned", lambda *_: planned)
    monkeypatch.setattr(refine, "_least_known", lambda *_: [refine.Known("profile_step", ROW)])
    monkeypatch.setattr(store, "_held", {})
    monkeypatch.setenv(client.SOCKET, "")  # no worker
    results = tmp_path / "results"
    write_text(results / FOLDER / "config.json", config_text(CONFIG))
    (tmp_path / "scripts").mkdir()
    return results, planned


@pytest.mark.parametrize(
    ("code", "most_s", "says"),
    [("raise SystemExit(9)", 60, "without a row"), ("while True: pass", 1, "after 1 s")],
)
def test_a_process_without_a_row_is_told_once(
    poorly_known, monkeypatch, capsys, code, most_s, says
):
    results, _ = poorly_known
    (results.parent / "scripts/run.py").write_text(code)
    monkeypatch.setattr(refine, "SHORTEST_S", most_s)
    assert main(["refine", "here", "--results", str(results)]) == refine.UNDECIDED
    assert capsys.readouterr().err == f"model=a,replicate=2: ended {says}; not tried again\n"
    assert [path.name for path in (results / FOLDER).parent.iterdir()] == ["model=a"]


@pytest.mark.parametrize("stranger", [{"_target_": "os.system"}, {"_target_": "os.abort"}])
def test_a_run_whose_config_the_plan_does_not_give_is_left_out_and_named(
    poorly_known, monkeypatch, capsys, stranger
):
    """Whether the plan has no such run, or another config for it."""
    results, planned = poorly_known
    (results.parent / "scripts/run.py").write_text("raise SystemExit(9)")
    write_json(results / FOLDER / "config.json", CONFIG | {"model": stranger})
    started = []
    monkeypatch.setattr(refine, "_measured", lambda *how: started.append(how) or True)
    for _ in range(2):
        main(["refine", "here", "--results", str(results)])
        assert FOLDER in capsys.readouterr().err
        planned.runs.clear()
    assert not started


def test_what_is_measured_is_the_plan_s_config_and_not_the_file_s(poorly_known, monkeypatch):
    results, planned = poorly_known
    written = []

    def measured(run, *_):
        written.append((results / run.folder / "config.json").read_text())
        planned.runs.clear()
        return True

    monkeypatch.setattr(refine, "_measured", measured)
    main(["refine", "here", "--results", str(results)])
    assert written == [config_text(CONFIG | {"replicate": 2})]


@pytest.mark.parametrize(
    ("word", "is_taken"),
    [
        ("model=resnet18,vit", True),
        ("batch_size=1,2", True),
        ("size=64", True),
        ("steps=[bench_matmul]", True),
        ("timing.windows=4", True),
        ("workload.checkpointing=true", True),
        ("model._target_=os.system", False),
        ("++model.arguments.command=id", False),
        ("model.arguments={command: id}", False),
        ("kernel._target_=os.system", False),
        ("workload.loader_file=/etc/passwd", False),
        ("trace=/proc/self/environ", False),
        ("batch_size=${oc.env:HOME}", False),
        ("~model", False),
        ("nothing.such=1", False),
    ],
)
def test_a_plan_among_the_results_chooses_and_names_neither_code_nor_a_file(word, is_taken):
    assert again.is_choice(word) is is_taken


def test_a_stranger_s_plan_that_names_code_gives_no_run(tmp_path):
    path = tmp_path / "results/here/plan/miniature.json"
    plan = {"experiment": "miniature", "hardware": "here", "runs": []}
    write_json(path, plan | {"overrides": ["model=own", "model._target_=os.system"]})
    found = again.planned("here", tmp_path / "results", ())
    assert not found.runs
    assert [str(path) in reason for reason in found.refused] == [True]


def test_a_sweep_that_is_under_way_is_not_refined(tmp_path, capsys):
    (tmp_path / "results/here").mkdir(parents=True)
    hold = (
        "import sys; from pathlib import Path; from mfulab.lab.planning import store;"
        "store.take(Path(sys.argv[1])); print(flush=True); input()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / "results")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert main(["refine", "here", "--results", str(tmp_path / "results")]) == 2
        assert f"process {holder.pid}" in capsys.readouterr().err
        holder.communicate(b"\n")


def test_without_results_there_is_nothing_to_refine(tmp_path, capsys):
    assert main(["refine", "here", "--results", str(tmp_path)]) == 2
    assert "nothing was measured" in capsys.readouterr().err


def test_a_run_that_was_not_steady_gets_further_processes():
    known = {
        "status": "ok",
        "precision_percent": 5.0,
        "replicates": 2,
        "left_out_replicates": 0,
        "process_s": 1.0,
    }
    rows = [
        {"run": run, "steady": steady, **known}
        for run, steady in (("a", True), ("b", False), ("c", None))
    ]
    records = {"profile": rows, "matmul": [known]}
    assert [known.row["run"] for known in refine._least_known(records, 25.0, 8)] == ["b"]


def test_runs_of_one_process_are_named_and_leave_the_answer_open(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    row = {
        "run": "a",
        "status": "ok",
        "replicates": 1,
        "left_out_replicates": 0,
        "process_s": 1.0,
        "steady": False,
    }
    rows = [
        row | {"precision_percent": None},
        row | {"run": "b", "status": "failed", "precision_percent": None},
    ]
    gathered = []
    records = SimpleNamespace(records={"profile": rows, "matmul": []})
    monkeypatch.setattr(store, "_held", {})
    monkeypatch.setattr(refine, "gather", lambda *where: gathered.append(where) or records)
    monkeypatch.setenv(client.SOCKET, "")  # no worker
    assert main(["refine", "here", "--results", str(tmp_path)]) == refine.UNDECIDED
    assert "\n1 run of one process has no interval: replicates=2" in capsys.readouterr().out
    assert len(gathered) == 1, "the rows of the last look are those that are told of"


def test_a_sweep_s_own_command_is_no_run_to_its_client():
    """Which takes a command with `--config` for the run of that config."""
    rule = (Path(refine.__file__).parents[3] / "workflow/rules/report.smk").read_text()
    refining = rule.partition("rule refine:")[2].partition("\nrule ")[0]
    assert "--sweep {params.config:q}" in refining
    assert "--config" not in refining
