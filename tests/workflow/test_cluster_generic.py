"""The sweep by `cluster-generic`, whose submit command puts jobs into a queue of this machine: another executor than
SLURM runs the same rules."""

import os
import signal
import time
from pathlib import Path

import pytest
from support import pretend
from support.pretend import finish
from support.processes import until

from mfulab.core.said import Said

pytestmark = [pytest.mark.workflow, pytest.mark.slow]
# A queue with one place, as batch systems have: submitting returns at once with an id, and asking tells the state.
SUBMIT = """#!/bin/sh
id=$(mktemp -u job.XXXXXXXX)
setsid sh -c "flock {queue}/place sh '$1'; echo \\$? > {queue}/$id.done" > {queue}/$id.log 2>&1 &
echo $id
"""
STATUS = """#!/bin/sh
[ -e {queue}/$1.done ] || { echo running; exit; }
[ "$(cat {queue}/$1.done)" = 0 ] && echo success || echo failed
"""


def command(folder: Path, name: str, text: str) -> Path:
    """An executable of the queue in `folder`."""
    path = folder / name
    path.write_text(text.replace("{queue}", str(folder)))
    path.chmod(0o755)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return pretend.make(tmp_path / "tree")


@pytest.fixture
def executor(tmp_path: Path) -> list[str]:
    """The options of a sweep whose jobs wait in a queue of this machine."""
    queue = tmp_path / "queue"
    queue.mkdir()
    return [
        *("--executor", "cluster-generic", "--jobs", "4"),
        *("--cluster-generic-submit-cmd", str(command(queue, "submit", SUBMIT))),
        *("--cluster-generic-status-cmd", str(command(queue, "status", STATUS))),
    ]


def test_a_sweep_by_submit_and_status_commands_measures_each_run_once(
    tree: Path, executor: list[str]
) -> None:
    finish(pretend.start(tree, *executor))
    pretend.assert_all_measured_once(tree)
    hosts = {path.read_text().splitlines()[1] for path in tree.glob("results/*/*/*/row.csv")}
    assert all(os.uname().nodename in line for line in hosts), "a row says where it ran"
    assert "Nothing to be done" in finish(pretend.start(tree, *executor))
    pretend.assert_all_measured_once(tree)


def test_a_signal_ends_it_in_order_whatever_a_slurm_says_that_is_not_in_use(
    tree: Path, executor: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    command(tmp_path / "bin", "squeue", f"#!/bin/sh\ntouch {tmp_path}/asked\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tree / "hold").touch()
    sweep = pretend.start(tree, *executor)
    until(lambda: pretend.begun(tree) >= 2)  # the first has ended, the second is held
    sweep.send_signal(signal.SIGTERM)
    time.sleep(5)  # in which SLURM would have been found silent
    assert sweep.poll() is None
    (tree / "hold").unlink()
    output = finish(sweep, status=1)
    assert str(Said("waits_for_queue")) in output
    assert not (tmp_path / "asked").exists()
    finish(pretend.start(tree, *executor))
    pretend.assert_all_measured_once(tree)
