"""What a process of ours begins ends with it, also where SIGKILL leaves it no time to say so."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.processes import is_running, pid_in, until

import mfulab

SOURCES = Path(mfulab.__file__).parents[1]
# Children that an interrupt does not end, as it does not end a rank that waits in C++.
CHILD = """
import os, signal, sys, time
from pathlib import Path

def stubborn(rank, folder):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name = Path(folder, f"{rank}.pid")
    name.with_suffix(".new").write_text(str(os.getpid()))
    name.with_suffix(".new").rename(name)
    time.sleep(600)
"""
RANKS = """
if __name__ == "__main__":
    from mfulab.models.parallel import run_ranks
    run_ranks(stubborn, (sys.argv[1],), 2)
"""
DRAWN = """
if __name__ == "__main__":
    from mfulab.lab.runtime import forked
    forked.drawing_cores = lambda: 2
    forked.in_processes(lambda name: stubborn(name, sys.argv[1]), ["0", "1"])
"""
READ = """
def kept(path, number, **_):
    stubborn(number, path)

if __name__ == "__main__":
    from mfulab.cli import trace_ranks
    trace_ranks._summarise = kept
    list(trace_ranks._summaries([sys.argv[1]] * 2, 2, Path(), {}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone ends children")
@pytest.mark.parametrize("begins", [RANKS, DRAWN, READ], ids=["ranks", "figures", "traces"])
def test_no_child_outlives_its_parent_that_was_killed(begins, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CHILD + begins)
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, env=environment, start_new_session=True) as parent:
        begun = [tmp_path / "0.pid", tmp_path / "1.pid"]
        until(lambda: parent.poll() is not None or all(name.exists() for name in begun))
        assert parent.poll() is None
        children = list(map(pid_in, begun))
        parent.kill()
    try:
        until(lambda: not any(map(is_running, children)), 20, "children go on")
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
