"""Asks the operating system about a run's processes, and supervises them. Nothing breaks if the
system has no answer."""

import errno
import os
import re
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from mfulab.device import system

WORKFLOW = "MFULAB_WORKFLOW"  # process id of the workflow, if it runs on this machine

PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)


class WorkflowEndedError(Exception):
    """The workflow has ended, so that nobody waits for the run's row."""


def check_workflow(environment: Mapping[str, str]) -> None:
    """Raises WorkflowEndedError if the workflow's process has ended. A run behind a shell cannot
    see that from its parent."""
    if WORKFLOW in environment and not is_alive(int(environment[WORKFLOW])):
        raise WorkflowEndedError


def is_alive(process: int) -> bool:
    """True if a process is running. On Linux, a zombie is not."""
    with suppress(ProcessLookupError):
        try:
            descriptor = os.pidfd_open(process)
        # Not available on macOS, before Linux 5.3 and in some sandboxes.
        except (AttributeError, OSError) as error:
            if getattr(error, "errno", errno.ENOSYS) not in (errno.ENOSYS, errno.EPERM):
                raise
            os.kill(process, 0)
            return True
        try:
            return not select.select([descriptor], [], [], 0)[0]
        finally:
            os.close(descriptor)
    return False


def out_of_memory_kills() -> int:
    """Number of processes that this machine has killed for lack of memory since it booted; 0 if
    unknown."""
    match = re.search(r"^oom_kill (\d+)", system.text("proc/vmstat") or "", re.MULTILINE)
    if match:
        return int(match[1])
    return 0


def supervise(become: Callable[[], object], lifelines: Sequence[int]) -> tuple[int, list[int]]:
    """Forks a process that calls `become` to turn into a run. Kills it and its descendants once the
    run, one of `lifelines` or this process ends. Lifelines are descriptors of processes that wait
    for the run. Returns the exit status (negative: a signal) and the lifelines that ended first. On
    Linux, the run is the first to be killed if memory runs out."""
    keeper = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Orphans of the run, in any session, become children of this process.
    system.prctl(PR_SET_CHILD_SUBREAPER, 1)
    run = os.fork()
    if run == 0:
        try:
            system.end_with_parent(keeper)
            os.setpgid(0, 0)
            become()
        finally:
            os._exit(1)
    with suppress(OSError):  # called in both processes, as either may be first
        os.setpgid(run, run)
    system.write(f"proc/{run}/oom_score_adj", "1000")
    status, ended = _wait(run, lifelines)
    with suppress(ProcessLookupError):  # the group is empty
        os.killpg(run, signal.SIGKILL)
    if status is None:
        status = os.waitpid(run, 0)[1]
    while children := _children():
        for child in children:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), ended


def _children() -> list[int]:
    """Process ids of this process's children; empty except on Linux."""
    listed = system.text(f"proc/self/task/{os.getpid()}/children") or ""
    return list(map(int, listed.split()))


def _wait(run: int, lifelines: Sequence[int]) -> tuple[int | None, list[int]]:
    """Waits until a child or a lifeline ends. Returns the child's wait status, None if it was not
    reaped, and the lifelines that ended."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        # Leaves it unreaped if possible, so that no other process group gets its number.
        if hasattr(os, "waitid"):
            if os.waitid(os.P_PID, run, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return None, []
        else:  # macOS
            reaped, status = os.waitpid(run, os.WNOHANG)
            if reaped:
                return status, []
        ready, _, _ = select.select([wake, *lifelines], [], [])
        if wake not in ready:
            return None, ready
        os.read(wake, 64)
