"""Planning leaves a running sweep alone: dry runs write nothing, second sweeps are refused."""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import pretend
from support.processes import until

from mfulab.core.said import Said
from mfulab.lab.planning import queues, store
from mfulab.lab.runtime.client import SOCKET
from mfulab.lab.runtime.devices import GPUS, JOBS, VISIBLE

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(sys.platform != "linux", reason="the worker is for Linux"),
]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*JOBS, VISIBLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(GPUS, f"{pretend.HARDWARE}:GPU-a")
    return pretend.make(tmp_path)


def command(*options: str, target: str = "results/tables/matmul.csv", **config: str) -> list[str]:
    """Snakemake for the tables of the pretended experiment with other values."""
    given = {"experiment": "pretend", "hardware": pretend.HARDWARE, **config}
    words = [f"{key}={value}" for key, value in given.items()]
    return [sys.executable, "-m", "snakemake", "--cores=1", *options, target, "--config", *words]


def start(tree: Path, *options: str, **config: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*options, **config),
        cwd=tree,
        env=pretend.environment(**{SOCKET: ""}),  # no worker: these runs import little
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def files(tree: Path) -> dict[str, tuple[int, int]]:
    """Every file of results/ with its time and size."""
    found = (path for path in (tree / "results").rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def table(tree: Path) -> dict[str, str]:
    """Status of each matmul in the table."""
    with (tree / "results/tables/matmul.csv").open(newline="") as file:
        return {row["run"]: row["status"] for row in csv.DictReader(file)}


@pytest.mark.slow
def test_another_command_changes_nothing_of_a_running_sweep(tree: Path) -> None:
    (tree / "hold").touch()
    sweep = start(tree)
    until(lambda: pretend.begun(tree) == 2, failure="the sweep did not begin")
    before = files(tree)

    dry = pretend.finish(start(tree, "-n", size="32,48"))
    assert "size=48" in dry
    refused = pretend.finish(start(tree, size="32,48"), 1)
    assert f"process {sweep.pid}" in refused
    assert len([line for line in refused.splitlines() if line.startswith("mfulab: ")]) == 1
    unlock = pretend.finish(start(tree, "--unlock"), 1)
    assert f"process {sweep.pid}" in unlock
    assert files(tree).keys() == before.keys()
    found = {path: files(tree)[path] for path in before if not path.endswith("/log")}
    assert found == {path: told for path, told in before.items() if not path.endswith("/log")}

    (tree / "hold").unlink()
    pretend.finish(sweep)
    assert table(tree) == {run.partition("/")[2]: "ok" for run in pretend.RUNS[3:]}
    pretend.assert_all_measured_once(tree)


def test_a_sweep_on_slurm_waits_for_jobs_that_an_earlier_one_left(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for `squeue`; no other command of SLURM is called before a sweep begins."""
    left = queues.Queue("slurm", "0b9d3f8e-aa", "squeue")
    squeue = tree / "bin/squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\nprintf 'RUNNING\nPENDING\n'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    queues.note(tree / "results", left)
    before = files(tree)
    refused = pretend.finish(start(tree, "--executor=slurm", "--jobs=1"), 1)
    [line] = [line for line in refused.splitlines() if line.startswith("mfulab: ")]
    numbers = {"folder": "results/", "count": 2, "jobs": left.jobs}
    assert line == f"mfulab: {Said('earlier_jobs_go_on', numbers)}"
    # the lock's file is there, and free: whoever ends the jobs may begin
    assert files(tree).keys() - before.keys() <= {str(tree / "results/.lock")}
    store.check_free(tree / "results")


@pytest.mark.slow
def test_a_dry_run_tells_what_would_be_measured_and_moves_nothing(tree: Path) -> None:
    pretend.finish(start(tree))
    before = files(tree)
    experiment = tree / "config/experiment/pretend.yaml"
    shipped = experiment.read_text()
    # the seed stands in no name
    experiment.write_text(shipped.replace("64,128", "64,192") + "seed: 5\n")
    dry = pretend.finish(start(tree, "-n"))
    assert dry.count("Multiplying kernel=torch") == 2
    assert files(tree) == before


@pytest.mark.slow
def test_old_results_come_back_with_their_config_and_a_dry_run_says_so(tree: Path) -> None:
    pretend.finish(start(tree))
    experiment = tree / "config/experiment/pretend.yaml"
    shipped = experiment.read_text()
    experiment.write_text(shipped.replace("64,128", "64,192") + "seed: 5\n")
    pretend.finish(start(tree))
    changed = files(tree)
    experiment.write_text(shipped)
    dry = pretend.finish(start(tree, "-n"))
    assert "Multiplying" not in dry
    assert "Joining rows into tables" in dry
    assert files(tree) == changed
    pretend.finish(start(tree))
    assert len(pretend.told(tree)) == len(pretend.RUNS) + 2


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_with_the_same_command(tree: Path) -> None:
    (tree / "hold").touch()
    sweep = start(tree)
    until(lambda: pretend.begun(tree) == 2, failure="the sweep did not begin")
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate()
    assert list((tree / ".snakemake/locks").iterdir())
    (tree / "hold").unlink()
    pretend.finish(start(tree))
    pretend.assert_all_measured_once(tree)


@pytest.mark.slow
def test_a_sweep_of_another_machine_is_not_taken_for_dead(tree: Path) -> None:
    pretend.finish(start(tree))
    lock = tree / "results/.lock"
    lock.write_text(
        '{"process": 12, "host": "elsewhere", "boot": "another", "since": "2026-01-01T00:00:00+00:00"}'
    )
    refused = pretend.finish(start(tree, size="32"), 1)
    assert "process 12 on elsewhere" in refused
    assert "make unlock" in refused
    pretend.finish(start(tree, "--unlock"))
    pretend.finish(start(tree, size="32"))
