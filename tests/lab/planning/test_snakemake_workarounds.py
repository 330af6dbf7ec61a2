"""Snakemake still needs each workaround, and only defaults that nobody asked for are removed."""

import asyncio
import atexit
import copy
import gc
import inspect
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from snakemake.cli import get_argument_parser
from snakemake.common import get_function_params, get_input_function_aux_params
from snakemake.dag import DAG
from snakemake.exceptions import WorkflowError
from snakemake.jobs import Job
from snakemake.settings.types import DAGSettings, SchedulingSettings
from snakemake.target_jobs import TargetSpec
from support.processes import HANGS_S, until

from mfulab.core.said import Said
from mfulab.lab.planning.inputs import row_of
from mfulab.lab.planning.queues import Queue
from mfulab.lab.planning.snakemake_workarounds import (
    OBJECTS_MADE,
    begin_before_executing,
    inspected,
    keep_finished_rows,
    keep_no_default_rate,
    keep_no_output_older,
    leave_finished_rows,
    look_for_garbage_rarely,
)


class OutputFile(str):
    """As much of Snakemake's file as its cleaning up asks."""

    async def exists(self):
        return Path(self).exists()

    async def remove(self):
        Path(self).unlink()


class File(str):
    """As much of Snakemake's file as its check of times asks."""

    async def exists_local(self):
        return Path(self).exists()

    async def mtime_uncached(self, skip_storage):
        return SimpleNamespace(local=lambda: Path(self).stat().st_mtime)


def test_an_output_older_than_its_input_is_dated_and_kept(tmp_path):
    """A clock that was set back an hour; the check itself is Snakemake's own."""
    config, row = tmp_path / "config.json", tmp_path / "row.csv"
    for path, age_s in ((config, -3600), (row, 0)):
        path.write_text("x")
        os.utime(path, (time.time() - age_s,) * 2)
    given, made = File(config), File(row)
    dag = SimpleNamespace()
    dag.check_output_mtime = types.MethodType(DAG.check_output_mtime, dag)
    job = SimpleNamespace(input=[given], rule=None)
    with pytest.raises(WorkflowError, match="older modification time"):
        asyncio.run(dag.check_output_mtime(job, [made]))
    keep_no_output_older(dag)
    asyncio.run(dag.check_output_mtime(job, [made]))
    assert row.stat().st_mtime_ns == config.stat().st_mtime_ns


@pytest.fixture
def python_looks_as_it_does():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)
    atexit.unregister(gc.freeze)


@pytest.mark.parametrize(
    ("arguments", "is_kept"),
    [
        ([], False),
        (["--max-jobs-per-timespan", "30/1m"], True),
        (["--max-jobs-per-timespan", "2/1s"], True),
    ],
)
def test_the_rate_that_no_one_asked_for_is_not_kept(arguments, is_kept):
    rate = get_argument_parser().parse_args(["--cores", "1", *arguments]).max_jobs_per_timespan
    settings = SchedulingSettings(max_jobs_per_timespan=rate)
    keep_no_default_rate(settings)
    assert settings.max_jobs_per_timespan is (rate if is_kept else None)


def test_thousands_of_jobs_that_live_on_are_not_walked_again_and_again(python_looks_as_it_does):
    def looks():
        gc.collect()
        before = sum(generation["collections"] for generation in gc.get_stats())
        jobs = [[number] for number in range(OBJECTS_MADE // 2)]
        return (
            len(jobs) and sum(generation["collections"] for generation in gc.get_stats()) - before
        )

    assert looks() > 10
    look_for_garbage_rarely()
    assert looks() == 0


def test_an_input_function_is_inspected_once_and_keeps_its_parameters(monkeypatch):
    def rows(wildcards, threads):
        return []

    monkeypatch.setattr(inspect, "signature", signature := Mock(wraps=inspect.signature))
    for _ in range(3):
        get_function_params(rows)
    assert signature.call_count == 3, "Snakemake remembers them itself"
    noted = inspected(rows)
    signature.reset_mock()
    assert [*get_function_params(noted)] == ["wildcards", "threads"]
    assert get_input_function_aux_params(noted, {"threads": 2, "input": ""}) == {"threads": 2}
    assert not signature.called


@pytest.mark.parametrize(
    ("mended", "told"),
    [("", "taken apart"), ("snakemake_workarounds.look_for_garbage_rarely()", "")],
)
def test_what_lives_as_long_as_the_workflow_is_not_taken_apart_at_its_end(mended, told):
    script = f"""
from mfulab.lab.planning import snakemake_workarounds

class Job:
    def __init__(self):
        self.dag = [self]

    def __del__(self):
        print("taken apart", end="")

{mended}
job = Job()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_a_sweep_ends_it_with_one_line(number):
    code = f"""
import os, time
from mfulab.lab.planning import snakemake_workarounds
snakemake_workarounds.catch_signals(snakemake_workarounds.leave_at_once)
os.kill(os.getpid(), {int(number)})
time.sleep({HANGS_S})
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS_S
    )
    assert ended.returncode == 128 + number
    assert ended.stderr.split("\n") == [
        "",
        "mfulab: interrupted before anything was measured; finished rows are kept, the same command goes on.",
        "",
    ]


# What a sweep's process does, in no time but for its children's.
SIGNALLED = """
import os, signal, threading, time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from mfulab.lab.planning import queues, snakemake_workarounds
from mfulab.lab.planning.inputs import row_of
from mfulab.lab.planning.queues import Queue
sleep = time.sleep
asked = []
scheduler = SimpleNamespace(exit_gracefully=lambda: asked.append(1))
"""
AT_ONCE = """
queues.time = SimpleNamespace(sleep=lambda seconds: sleep(0.01))
questions = Queue.questions
"""
SILENT = "exec sleep 600"
JOBS = "0b9d3f8e-run"


def stand_ins(folder: Path, **commands: str) -> dict[str, str]:
    """An environment whose commands are these shell scripts; each use adds a line to NAME.asked."""
    for name, script in commands.items():
        command = folder / name
        command.write_text(f"#!/bin/sh\necho asked >> {folder}/{name}.asked\n{script}\n")
        command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("squeue", "sacct", "queue", "silent"),
    [
        (SILENT, "", Queue("slurm", JOBS, "squeue"), "squeue"),
        (f"trap '' TERM; {SILENT}", "", Queue("slurm", JOBS, "squeue"), "squeue"),
        ("exit 1", "", Queue("slurm", JOBS, "squeue"), "squeue"),
        ("", "exit 1", Queue("slurm", JOBS, "sacct"), "sacct"),
        ("", SILENT, Queue("slurm", JOBS, "sacct"), "sacct"),
        ("", "exit 1", Queue("slurm", JOBS, "squeue"), ""),
        ("exit 1", "exit 1", Queue("cluster-generic"), ""),  # installed, but not the one in use
        ("exit 1", "exit 1", Queue(), ""),
    ],
)
def test_a_sweep_whose_slurm_is_silent_ends_by_one_signal(
    tmp_path, squeue, sacct, queue, silent, number
):
    answers_s = 0.2 if SILENT in squeue + sacct else HANGS_S
    is_slurm = queue.executor == "slurm"
    code = f"""{SIGNALLED}{AT_ONCE}
Queue.questions = lambda queue: [replace(each, answers_s={answers_s}) for each in questions(queue)]
snakemake_workarounds.end_in_order(scheduler, {queue!r})
os.kill(os.getpid(), {int(number)})
def times(path):  # asked so often, one that leaves has left
    return len(path.read_text().split()) if path.exists() else 0
while not asked or {bool(silent)} or {4 * is_slurm} > times(Path({str(tmp_path)!r}, "squeue.asked")):
    sleep(0.01)
sleep(0.1)
print("waited")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        env=stand_ins(tmp_path, squeue=squeue, sacct=sacct),
    )
    if SILENT not in squeue:  # else it may be ended before it says so
        assert (tmp_path / "squeue.asked").exists() == is_slurm
    if SILENT not in sacct:
        assert (tmp_path / "sacct.asked").exists() == (queue.looks_by == "sacct")
    assert ended.returncode == (128 + number if silent else 0)
    assert ended.stdout == ("" if silent else "waited\n")
    left = f"{Said('slurm_is_silent', {'command': silent})} {queue.when_left()}"
    assert (left in ended.stderr) == bool(silent)
    # whoever waits for a queue is told that a second signal ends that
    assert (str(Said("waits_for_queue")) in ended.stderr) == bool(queue.executor)


@pytest.mark.parametrize(
    ("queue", "key"),
    [
        (Queue("slurm", JOBS, "squeue"), "left_slurm"),
        (Queue("cluster-generic"), "left_queue"),
        (Queue(), "left_here"),
    ],
)
def test_a_second_signal_says_what_goes_on_and_how_to_end_it(tmp_path, queue, key):
    code = f"""{SIGNALLED}
snakemake_workarounds.end_in_order(scheduler, {queue!r})
os.kill(os.getpid(), signal.SIGTERM)
while not asked:
    sleep(0.01)
os.kill(os.getpid(), signal.SIGINT)
sleep({HANGS_S})
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        env=stand_ins(tmp_path, squeue=""),
    )
    assert ended.returncode == 128 + signal.SIGINT
    assert queue.when_left().key == key
    assert str(queue.when_left()) in ended.stderr
    assert (f"scancel --name={JOBS}" in ended.stderr) == (key == "left_slurm")


UNREAD = """
os.set_blocking(2, False)
try:
    while True:
        os.write(2, bytes(1 << 12))
except BlockingIOError:
    os.set_blocking(2, True)
"""
BUSY = """
say = snakemake_workarounds.say
def only_beside(*values, **options):
    if threading.current_thread() is threading.main_thread():
        raise RuntimeError("reentrant call inside the stream that the signal interrupted")
    say(*values, **options)
snakemake_workarounds.say = only_beside
"""
TERMINALS = {"closed": "", "unread": UNREAD, "busy": BUSY, "read": ""}


@pytest.mark.parametrize("terminal", ["closed", "unread", "busy"])
def test_a_terminal_that_is_gone_or_not_read_holds_no_end_up(tmp_path, terminal):
    """The standard error is a pipe without a reader, one that is full, or is being written to."""
    code = f"""{SIGNALLED}{AT_ONCE}
snakemake_workarounds.end_in_order(scheduler, {Queue("slurm", JOBS, "squeue")!r})
{TERMINALS[terminal]}
os.kill(os.getpid(), signal.SIGTERM)
if {terminal == "busy"}:
    os.kill(os.getpid(), signal.SIGTERM)
sleep({HANGS_S})
"""
    reader, writer = os.pipe()
    if terminal == "closed":
        os.close(reader)
    environment = stand_ins(tmp_path, squeue="exit 1")
    process = subprocess.Popen([sys.executable, "-c", code], stderr=writer, env=environment)
    os.close(writer)
    assert process.wait(HANGS_S) == 128 + signal.SIGTERM
    if terminal != "closed":
        os.close(reader)


ONCE = f'[ "$(wc -l < $0.asked)" = 1 ] || {SILENT}'  # answers, and falls silent


def test_a_silent_slurm_and_an_unread_terminal_hold_a_sweep_up_for_less_than_10_s(tmp_path):
    """With the pauses of a sweep, all cases at a time."""
    sweeps = []
    readers = []
    for terminal in ("read", "unread"):
        for squeue in (SILENT, ONCE):
            folder = tmp_path / f"{terminal}{len(sweeps)}"
            folder.mkdir()
            code = f"""{SIGNALLED}
snakemake_workarounds.end_in_order(scheduler, {Queue("slurm", JOBS, "squeue")!r})
{TERMINALS[terminal]}
Path({str(folder)!r}, "ready").touch()
sleep({HANGS_S})
"""
            reader, writer = os.pipe()
            environment = stand_ins(folder, squeue=squeue)
            command = [sys.executable, "-c", code]
            sweeps.append(subprocess.Popen(command, stderr=writer, env=environment))
            os.close(writer)
            readers.append(reader)
    until(lambda: len(list(tmp_path.glob("*/ready"))) == len(sweeps))
    began = time.monotonic()
    for sweep in sweeps:
        sweep.send_signal(signal.SIGTERM)
    statuses = [sweep.wait(HANGS_S) for sweep in sweeps]
    took_s = time.monotonic() - began
    assert statuses == [128 + signal.SIGTERM] * 4
    assert all((sweep / "squeue.asked").exists() for sweep in tmp_path.iterdir())
    assert 5 < took_s < 10, "two failures to answer of 2 s each, and what is around them"
    for reader in readers:
        os.close(reader)


MATMULS = [
    TargetSpec("bench_matmul", {"hardware": "h", "run": "kernel=torch", "size": size})
    for size in ("64", "128")
]


@pytest.mark.parametrize(
    ("finished", "restarts", "attempt", "is_main", "sizes", "targets"),
    [
        (["64"], "1", 1, False, ["128"], []),
        (["64"], None, 2, False, ["128"], []),
        (["64", "128"], "1", 1, False, [], ["64", "128"]),  # no target would be the whole report
        ([], "1", 2, False, ["64", "128"], []),
        (["64"], None, 1, False, ["64", "128"], []),  # forced by who typed the command
        (["64"], "1", 2, True, ["64", "128"], []),
    ],
)
def test_a_job_that_is_started_again_leaves_what_it_has_finished(
    monkeypatch, finished, restarts, attempt, is_main, sizes, targets
):
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    if restarts:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    paths = {
        size: f"results/h/bench_matmul/kernel=torch,size={size}/row.csv" for size in ("64", "128")
    }
    workflow = SimpleNamespace(
        attempt=attempt,
        is_main_process=is_main,
        dag_settings=DAGSettings(target_jobs=copy.deepcopy(MATMULS), forcetargets=True),
        _prepare_dag=Mock(),
    )
    prepare = workflow._prepare_dag
    lab = SimpleNamespace(
        row_of=row_of, is_finished=lambda row: str(row) in [paths[size] for size in finished]
    )
    leave_finished_rows(workflow, lab)
    workflow._prepare_dag(forceall=False)
    prepare.assert_called_once_with(forceall=False)
    settings = workflow.dag_settings
    assert [re.search("64|128", str(target))[0] for target in settings.target_jobs] == sizes
    assert settings.targets == {paths[size] for size in targets}
    assert settings.forcetargets == (not targets)


def test_a_failed_group_keeps_the_rows_that_it_finished(tmp_path, monkeypatch):
    """Snakemake itself removes them; the cleaning up is its own."""
    monkeypatch.setattr(Job, "cleanup", Job.cleanup)  # is set back afterwards
    rows = [OutputFile(tmp_path / name / "row.csv") for name in ("finished", "lost")]
    for row in rows:
        Path(row).parent.mkdir()
        Path(row).touch()
    job = SimpleNamespace(output=rows, storage_output=[])
    keep_finished_rows(SimpleNamespace(is_finished=lambda path: path.parent.name == "finished"))
    asyncio.run(Job.cleanup(job, set()))
    assert [Path(row).exists() for row in rows] == [True, False]


def test_what_begins_is_told_its_targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lab = SimpleNamespace(begin=Mock(return_value=False), outlook=lambda dag: "")
    workflow = SimpleNamespace(
        execute=lambda plugin: "done",
        unlock=None,
        is_main_process=True,
        dag_settings=SimpleNamespace(targets={"rows"}),
        scheduling_settings=SchedulingSettings(),
        dag=None,
    )
    begin_before_executing(workflow, lab)
    for is_dry in (True, False):
        plugin = SimpleNamespace(name="slurm", common_settings=SimpleNamespace(dryrun_exec=is_dry))
        assert workflow.execute(plugin) == "done"
    lab.begin.assert_called_once_with({"rows"}, "slurm")  # a dry run begins nothing
