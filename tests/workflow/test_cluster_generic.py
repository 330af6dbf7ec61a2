"""The sweep by `cluster-generic`, whose submit command puts jobs into a queue of this machine: another executor than
SLURM runs the same rules."""

import importlib.util
import os
from pathlib import Path

import pytest
from support import pretend
from support.pretend import finish

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("snakemake_executor_plugin_cluster_generic") is None,
        reason="not installed: snakemake-executor-plugin-cluster-generic",
    ),
]
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


def test_a_sweep_by_submit_and_status_commands_measures_each_run_once(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    tree = pretend.make(tmp_path / "tree")
    executor = [
        *("--executor", "cluster-generic", "--jobs", "4"),
        *("--cluster-generic-submit-cmd", str(command(queue, "submit", SUBMIT))),
        *("--cluster-generic-status-cmd", str(command(queue, "status", STATUS))),
    ]
    finish(pretend.start(tree, *executor))
    pretend.assert_all_measured_once(tree)
    hosts = {path.read_text().splitlines()[1] for path in tree.glob("results/*/*/*/row.csv")}
    assert all(os.uname().nodename in line for line in hosts), "a row says where it ran"
    assert "Nothing to be done" in finish(pretend.start(tree, *executor))
    pretend.assert_all_measured_once(tree)
