"""Requests to the operating system about a run's processes; nothing breaks if it has no answer."""

import errno
import os
import re
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from mfulab.device import system

WORKFLOW = "MFULAB_WORKFLOW"  # the process of the workflow, where it runs on this machine

PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)


class WorkflowEndedError(Exception):
    """Nobody waits for the run's row any more."""


def check_workflow(environment: Mapping[str, str]) -> None:
    """Raises WorkflowEndedError if the workflow's process has ended; a run behind a shell cannot
    tell by its parent."""
    if WORKFLOW in environment and not is_alive(int(environment[WORKFLOW])):
        raise WorkflowEndedError


def is_alive(process: int) -> bool:
    """True if a process goes on; one that has ended and that nobody has waited for does not
    (Linux)."""
    with suppress(ProcessLookupError):
        try:
            descriptor = os.pidfd_open(process)
        except (
            AttributeError,
            OSError,
        ) as error:  # there is none on macOS, before Linux 5.3 and in some sandboxes
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
    """Number of processes that this machine has killed for lack of memory since it started; 0 if
    unknown."""
    match = re.search(r"^oom_kill (\d+)", system.text("proc/vmstat") or "", re.MULTILINE)
    if match:
        return int(match[1])
    return 0


def supervise(become: Callable[[], object], lifelines: Sequence[int]) -> tuple[int, list[int]]:
    """Forks a process that becomes a run, and ends it with all that it leaves once it, a lifeline
    or this process ends. Returns its exit status (negative: a signal) and the lifelines,
    descriptors of who waits for it, that ended before. On Linux the run is the first to be killed
    if memory runs out, and dies with this process."""
    keeper = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # What the run leaves behind, in whatever session, becomes this process's child.
    system.prctl(PR_SET_CHILD_SUBREAPER, 1)
    if (run := os.fork()) == 0:
        try:
            system.end_with_parent(keeper)
            os.setpgid(0, 0)
            become()
        finally:
            os._exit(1)
    with suppress(OSError):  # whoever is first, this process or the run
        os.setpgid(run, run)
    system.write(f"proc/{run}/oom_score_adj", "1000")
    status, ended = _wait(run, lifelines)
    with suppress(ProcessLookupError):  # none of the group is left
        os.killpg(run, signal.SIGKILL)
    if status is None:
        status = os.waitpid(run, 0)[1]
    while children := (
        system.text(f"proc/self/task/{os.getpid()}/children") or ""
    ).split():  # Linux
        for child in map(int, children):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), ended


def _wait(run: int, lifelines: Sequence[int]) -> tuple[int | None, list[int]]:
    """Waits for the end of a child or of a lifeline: the child's status where it had to be reaped,
    and those lines."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        if hasattr(os, "waitid"):  # it stays unreaped, so that no other group takes its number
            if os.waitid(os.P_PID, run, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return None, []
        elif (reaped := os.waitpid(run, os.WNOHANG))[0]:  # macOS
            return reaped[1], []
        ready, _, _ = select.select([wake, *lifelines], [], [])
        if wake not in ready:
            return None, ready
        os.read(wake, 64)
