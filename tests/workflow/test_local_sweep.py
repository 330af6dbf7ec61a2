"""A sweep on one machine for real: on four pretend GPUs, and interrupted."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from support import pretend
from support.processes import HANGS_S, is_running, until

from mfulab.lab.runtime.devices import GPUS, JOBS, VISIBLE

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="the worker is for Linux, and processes are found in /proc"
    ),
]
FOUR = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
MARK = "MFULAB_TEST_MARK"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*JOBS, VISIBLE):
        monkeypatch.delenv(name, raising=False)
    return pretend.make(tmp_path)


@pytest.mark.slow
def test_four_gpus_measure_four_runs_at_a_time(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPUS, ",".join(f"{pretend.HARDWARE}:{gpu}" for gpu in FOUR))
    (tree / "together").write_text(str(len(FOUR)))
    experiment = tree / "config/experiment/pretend.yaml"
    experiment.write_text(experiment.read_text().replace("64,128", "64,128,192,256,320,384"))
    sizes = (64, 128, 192, 256, 320, 384)
    runs = [
        *pretend.RUNS[:3],
        *(f"bench_matmul/kernel=torch,size={size},precision=fp32" for size in sizes),
    ]
    pretend.finish(
        pretend.start(tree, "--cores=8", "--resources", "gpu=4", "cpu_measurement=1", runs=runs)
    )
    pretend.assert_all_measured_once(tree, runs)
    made = pretend.told(tree)
    assert {measurement.gpu for measurement in made} == set(FOUR)
    pretend.assert_one_at_a_time_on_each_gpu(tree, FOUR)
    at_once = [sum(other.began <= each.began < other.ended for other in made) for each in made]
    assert max(at_once) == len(FOUR)
    # all were forked by the one worker
    assert len({measurement.worker for measurement in made}) == 1


@pytest.mark.slow
def test_no_rate_is_kept_that_no_one_asked_for(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow has called `keep_no_default_rate` on its scheduler before its first run."""
    monkeypatch.setenv(GPUS, f"{pretend.HARDWARE}:GPU-f")
    rules = tree / "workflow/rules/common.smk"
    start = "    lifetime.start("
    assert start in rules.read_text()
    told = '    print(workflow.scheduler.job_rate_limiter, file=open("rate", "w"))'
    rules.write_text(rules.read_text().replace(start, f"{told}\n{start}"))
    pretend.finish(pretend.start(tree, "--cores=1", runs=pretend.RUNS[:1]))
    assert (tree / "rate").read_text() == "None\n"


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark in the environment of all that this test starts; what a failing test left running is
    ended."""
    mark = str(uuid4())
    monkeypatch.setenv(MARK, mark)
    yield mark
    for process in still_running(mark):
        os.kill(process, signal.SIGKILL)


@pytest.mark.slow  # test_faults ends a sweep every day
@pytest.mark.parametrize("way", ["Ctrl-C", "SIGKILL"])
def test_an_interrupted_sweep_leaves_nothing_running_and_goes_on(
    tree: Path, monkeypatch: pytest.MonkeyPatch, marked: str, way: str
) -> None:
    """One run is done, one under way, and two wait for its GPU: by its lock, as `gpu=3` promises
    more than there is."""
    runs = pretend.RUNS[:4]
    monkeypatch.setenv(GPUS, f"{pretend.HARDWARE}:GPU-e")
    (tree / "hold").touch()
    options = ("--cores=3", "--resources", "gpu=3")
    terminal, of_the_process = os.openpty()
    with (tree / "output").open("w") as output:
        sweep = subprocess.Popen(
            # as in a terminal of its own
            ["setsid", "--ctty", *pretend.command(*options, runs=runs)],
            cwd=tree,
            env=pretend.environment(),
            stdin=of_the_process,
            stdout=output,
            stderr=output,
        )
    until(lambda: pretend.begun(tree) == 2 and waiting(tree) == 2)
    if way == "Ctrl-C":
        os.write(terminal, b"\x03")
    else:
        sweep.kill()
    assert sweep.wait(HANGS_S) != 0
    os.close(of_the_process)
    os.close(terminal)
    until(lambda: not still_running(marked))
    worker = pretend.told(tree)[0].worker
    assert worker is not None
    assert not Path(worker).parent.exists()
    done = pretend.rows(tree)
    assert len(done) == 1

    (tree / "hold").unlink()
    pretend.finish(pretend.start(tree, *options, runs=runs))
    pretend.assert_all_measured_once(tree, runs)


def waiting(tree: Path) -> int:
    """Runs that have said that they wait for a GPU, and have not begun."""
    logs = [
        log
        for log in tree.glob("results/*/*/*/log")
        if "another run measures there" in log.read_text()
    ]
    return sum(not log.with_name("began").exists() for log in logs)


def still_running(mark: str) -> list[int]:
    """Processes that were started, by whomever, with this test's mark in their environment; not
    this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if is_marked and is_running(int(folder.name)) and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found
