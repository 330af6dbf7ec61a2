"""Requests to the operating system about a run's processes; nothing breaks if it has no answer."""

import errno
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from mfulab.device import system

WORKFLOW = "MFULAB_WORKFLOW"  # the process of the workflow, where it runs on this machine
# How messages begin of runs that were ended from outside or crashed: another process may well come to its end.
SIGNALLED = "the run's process was ended by"
UNSUPERVISED = "the process that supervised the run was killed"

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
_reaped: dict[int, int] = {}  # the status of children that had to be reaped to be looked at


class WorkflowEndedError(Exception):
    """Nobody waits for the run's row any more."""


def check_workflow(environment: Mapping[str, str]) -> None:
    """Raises WorkflowEndedError if the process that `environment` names as the workflow has ended.

    A shell stands between the workflow and its runs and outlives it, so that these cannot tell by their parent.
    """
    if WORKFLOW in environment and not is_alive(int(environment[WORKFLOW])):
        raise WorkflowEndedError


def is_alive(process: int) -> bool:
    """True if a process goes on; one that has ended and that nobody has waited for does not (Linux)."""
    try:
        descriptor = _pidfd(process)
        if descriptor is None:
            os.kill(process, 0)
            return True
    except ProcessLookupError:
        return False
    try:
        return not select.select([descriptor], [], [], 0)[0]
    finally:
        os.close(descriptor)


def _pidfd(process: int) -> int | None:
    """A file descriptor of a process; None if the system has none to give (before Linux 5.3, in some sandboxes)."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(process)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise


def out_of_memory_kills() -> int:
    """Number of processes that this machine has killed for lack of memory since it started; 0 if unknown."""
    for line in (system.text("proc/vmstat") or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def prefer_to_kill(process: int) -> None:
    """Makes `process` the first to be killed if memory runs out, not the workflow or the worker."""
    system.write(f"proc/{process}/oom_score_adj", "1000")


def end_with_parent(parent: int) -> None:
    """This process is killed when `parent`, which forked it, ends however that ends (Linux)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave behind, in whatever session (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes

    if system.IS_LINUX:
        ctypes.CDLL(None).prctl(option, value)


def watch(run: int, lifelines: Sequence[int]) -> list[int]:
    """Waits until `run`, a child of this process, has ended, which gives an empty list, or descriptors have: these."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while not _has_ended(run):
        ready, _, _ = select.select([wake, *lifelines], [], [])
        if wake not in ready:
            return ready
        os.read(wake, 64)
    return []


def end(run: int) -> int:
    """Ends a child, its process group and all that it left to this process; its exit status (negative: a signal)."""
    with suppress(ProcessLookupError):  # none of the group is left
        os.killpg(run, signal.SIGKILL)
    status = _reaped.pop(run) if run in _reaped else os.waitpid(run, 0)[1]
    while children := (system.text(f"proc/self/task/{os.getpid()}/children") or "").split():  # Linux
        for child in map(int, children):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _has_ended(child: int) -> bool:
    """True if a child has ended. If the system can, it stays unreaped, so that no other group takes its number."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    found, status = os.waitpid(child, os.WNOHANG)  # macOS
    if found:
        _reaped[child] = status
    return bool(found)
