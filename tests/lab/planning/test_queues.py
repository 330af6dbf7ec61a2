"""SLURM jobs that an earlier sweep left are found, and a sweep that would measure again waits."""

import os
import subprocess
from pathlib import Path

import pytest
from support.said import keys, refused

from mfulab.core.errors import ConfigurationError
from mfulab.lab.planning import queues
from mfulab.lab.planning.queues import Queue

SWEEP = Queue("slurm", "prefix_0b9d3f8e-aa", "squeue")


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a stand-in for `squeue`, which notes its arguments."""

    def write(script: str) -> Path:
        command = tmp_path / "bin/squeue"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{script}\n')
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
        return tmp_path / "asked"

    return write


@pytest.mark.parametrize(
    ("states", "count"),
    [("PENDING RUNNING", 2), ("SUSPENDED COMPLETING", 1), ("COMPLETING", 0), ("", 0)],
)
def test_jobs_that_are_queued_or_run_are_counted(tmp_path, squeue, states, count):
    asked = squeue(f"printf '%s\\n' {states}")
    queues.note(tmp_path, SWEEP)
    why = queues.left_by_an_earlier_sweep(tmp_path)
    assert f"--name={SWEEP.jobs}" in asked.read_text().split()
    if count == 0:
        assert why is None
        return
    with refused(ConfigurationError, "earlier_jobs_go_on", count=count, jobs=SWEEP.jobs):
        queues.refuse(why, "slurm")
    queues.refuse(why, "local")  # it draws what there is


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 600"])
def test_a_scheduler_that_tells_nothing_may_have_jobs(tmp_path, squeue, script, monkeypatch):
    monkeypatch.setattr(queues, "TOLD_S", 0.5)
    squeue(script)
    queues.note(tmp_path, SWEEP)
    why = queues.left_by_an_earlier_sweep(tmp_path)
    assert keys(why) == {"earlier_jobs_unknown"}


def test_results_copied_to_where_there_is_no_slurm_wait_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    queues.note(tmp_path, SWEEP)
    assert queues.left_by_an_earlier_sweep(tmp_path) is None


@pytest.mark.parametrize("text", [None, "", "a b", "x\ny", "--all", "$(id)", "x" * 101, "\0"])
def test_nothing_is_asked_without_a_name_of_jobs(tmp_path, squeue, text):
    asked = squeue("echo RUNNING")
    if text is not None:
        (tmp_path / queues.JOBS).write_text(text)
    assert queues.left_by_an_earlier_sweep(tmp_path) is None
    assert not asked.exists()


@pytest.mark.parametrize("queue", [Queue(), Queue("cluster-generic")])
def test_only_slurms_jobs_are_noted(tmp_path, queue):
    queues.note(tmp_path, queue)
    assert list(tmp_path.iterdir()) == []
    queues.note(tmp_path, SWEEP)
    assert len(list(tmp_path.iterdir())) == 1
    queues.forget(tmp_path)
    queues.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_sacct_is_asked_only_where_it_is_what_the_executor_looks_by(squeue, tmp_path):
    squeue("")
    (tmp_path / "bin/sacct").symlink_to("squeue")
    commands = {
        looks_by: [each.command[0] for each in Queue("slurm", "x", looks_by).questions()]
        for looks_by in ("squeue", "sacct")
    }
    assert commands == {"squeue": ["squeue"], "sacct": ["squeue", "sacct"]}
    assert Queue("lsf").questions() == []


def test_an_answer_between_two_failures_begins_the_count_anew(monkeypatch):
    slept = []
    monkeypatch.setattr(queues.time, "sleep", slept.append)
    statuses = iter([0, 1, 0, 1, 1])
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, next(statuses))
    )
    [question] = SWEEP.questions()
    question.wait_until_silent()
    # none after the last failure
    assert slept == [2, 1, 2, 1]
    assert list(statuses) == []


@pytest.mark.parametrize(
    ("name", "text", "age_s", "is_finished"),
    [
        ("row.csv", "status\nok\n", 0, True),
        ("row.csv", "status\nok\n", 60, False),  # of a sweep before: to be measured again
        ("row.csv", "status\nok", 0, False),
        ("samples.csv", "status\nok\n", 0, False),
    ],
)
def test_a_row_is_of_this_sweep_if_it_is_complete_and_later(
    tmp_path, name, text, age_s, is_finished
):
    row = tmp_path / name
    assert not queues.is_of_this_sweep(tmp_path, row)
    queues.note(tmp_path, SWEEP)
    assert not queues.is_of_this_sweep(tmp_path, row)
    row.write_text(text)
    begun_s = (tmp_path / queues.JOBS).stat().st_mtime
    os.utime(row, (begun_s + 1 - age_s,) * 2)
    assert queues.is_of_this_sweep(tmp_path, row) == is_finished
    queues.forget(tmp_path)
    assert not queues.is_of_this_sweep(tmp_path, row)
