"""Snakemake still needs each workaround, and only defaults that nobody asked for are removed."""

import asyncio
import atexit
import gc
import inspect
import os
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
from snakemake.settings.types import SchedulingSettings
from support.processes import HANGS_S

from mfulab.lab.planning.snakemake_workarounds import (
    OBJECTS_MADE,
    begin_before_executing,
    inspected,
    keep_no_default_rate,
    keep_no_output_older,
    look_for_garbage_rarely,
)


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
import os, signal, time
from pathlib import Path
from types import SimpleNamespace
from mfulab.lab.planning import snakemake_workarounds
sleep = time.sleep
snakemake_workarounds.time = SimpleNamespace(sleep=lambda seconds: sleep(0.01))
asked = []
scheduler = SimpleNamespace(exit_gracefully=lambda: asked.append(1))
"""
SILENT = "exec sleep 600"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("squeue", "is_local", "leaves"),
    [
        (SILENT, False, True),
        (f"trap '' TERM; {SILENT}", False, True),
        ("exit 1", False, True),
        ("", False, False),
        ("exit 1", True, False),
    ],
)
def test_a_sweep_whose_slurm_is_silent_ends_by_one_signal(
    tmp_path, squeue, is_local, leaves, number
):
    command, asked = tmp_path / "squeue", tmp_path / "asked"
    command.write_text(f"#!/bin/sh\necho asked >> {asked}\n{squeue}\n")
    command.chmod(0o755)
    answers_s = 0.2 if SILENT in squeue else HANGS_S
    times = 0 if is_local else 4  # asked so often, one that leaves has left
    code = f"""{SIGNALLED}
snakemake_workarounds.ANSWERS_S = {answers_s}
snakemake_workarounds.end_in_order(scheduler, {is_local})
os.kill(os.getpid(), {int(number)})
path = Path({str(asked)!r})
while not asked or {leaves} or {times} > len(path.read_text().split() if path.exists() else ""):
    sleep(0.01)
print("waited")
"""
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        env=environment,
    )
    if SILENT not in squeue:  # else it may be ended before it says so
        assert asked.exists() == (not is_local)
    assert ended.returncode == (128 + number if leaves else 0)
    assert ended.stdout == ("" if leaves else "waited\n")
    found = "SLURM does not answer.\n\nmfulab: left at once; finished rows are kept" in ended.stderr
    assert found == leaves
    assert ("interrupted again, at once" in ended.stderr) == (not is_local)


@pytest.mark.parametrize("terminal", ["closed", "unread", "busy"])
def test_a_terminal_that_is_gone_or_not_read_holds_no_end_up(tmp_path, terminal):
    """The standard error is a pipe without a reader, one that is full, or is being written to."""
    code = f"""{SIGNALLED}
import threading
snakemake_workarounds.end_in_order(scheduler, False)
if {terminal == "unread"}:
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, bytes(1 << 12))
    except BlockingIOError:
        os.set_blocking(2, True)
if {terminal == "busy"}:
    say = snakemake_workarounds.say
    def only_beside(*values, **options):
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("reentrant call inside the stream that the signal interrupted")
        say(*values, **options)
    snakemake_workarounds.say = only_beside
os.kill(os.getpid(), signal.SIGTERM)
if {terminal == "busy"}:
    os.kill(os.getpid(), signal.SIGTERM)
sleep({HANGS_S})
"""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nexit 1\n")
    squeue.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    reader, writer = os.pipe()
    if terminal == "closed":
        os.close(reader)
    process = subprocess.Popen([sys.executable, "-c", code], stderr=writer, env=environment)
    os.close(writer)
    assert process.wait(HANGS_S) == 128 + signal.SIGTERM
    if terminal != "closed":
        os.close(reader)


def test_what_begins_is_told_its_targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    lab = SimpleNamespace(
        begin=lambda targets: told.append(targets) or False, outlook=lambda dag: ""
    )
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
        plugin = SimpleNamespace(common_settings=SimpleNamespace(dryrun_exec=is_dry))
        assert workflow.execute(plugin) == "done"
    assert told == [{"rows"}], "a dry run begins nothing"
