"""Runs a measurement's script in the warm worker, or in a new process without one, and writes a row
if it dies. Started once per run, as `python -S -E client.py SCRIPT --config FILE`, so that imports
are few. Exit status 0: there is a row."""

import fcntl
import json
import math
import os
import select
import signal
import socket
import stat
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

if not __package__:  # run as a file: import from the package, not from this folder
    sys.path[0] = os.path.abspath(f"{__file__}/../../../..")

from mfulab.core.json_text import load_object
from mfulab.core.printing import say
from mfulab.core.replicates import halved
from mfulab.device import system
from mfulab.lab.runtime import budget, devices, endings, processes
from mfulab.lab.runtime.processes import WorkflowEndedError

SOCKET = "MFULAB_WORKER"
STARTED = b"started\n"
WORKFLOW_ENDED = b"ended\n"  # the worker's answer instead of an exit status
# Exit status of a script for a run that must not become a row; unused by argparse and Python.
REFUSED = 113
HALVED = 112  # exit status of a run out of memory that left a config with half its batch
INSTEAD_OF = "--instead-of"  # the config of the run whose batch did not fit
KILLED = "--killed"  # precedes the command of a client that was killed
# Time limit of runs without timing in their config: ceilings, loads, counting.
TIME_LIMIT = "MFULAB_TIME_LIMIT_S"
LONGEST_LOG = 16 << 20  # bytes
ABANDONED = 1
DEFAULT_TIME_LIMIT_S = 600
WORKER_START_S = 120  # importing from a cluster's file system may take long
GRACE_S = 10  # from a run's time limit until it must have ended
POLL_S = 1.0  # between checks that the workflow is alive, if no worker reports its end
# Snakemake sets these to a rule's `threads`, but a run's own config says how many it measures with.
LIBRARIES = ("GOTO_NUM", "MKL_NUM", "NUMEXPR_NUM", "OMP_NUM", "OPENBLAS_NUM", "VECLIB_MAXIMUM")
THREADS = tuple(f"{library}_THREADS" for library in LIBRARIES)


def main(command: list[str]) -> int:
    """Runs `command`, a script and its arguments, or after `--killed` writes the row of the killed
    command. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # this process ends at once, and with it the run
    environment = {}
    for key, value in os.environ.items():
        if key not in THREADS:
            environment[key] = value
    try:
        if command[0] == KILLED:
            return _killed(command[1:], environment)
        if "--config" in command:
            return _measure(command, environment)
        began = time.monotonic()
        status = _execute(command, environment, None)
        sweep = budget.read() if command[1:2] == ["page"] else None
        if sweep is not None:
            sweep.note(budget.PAGE, time.monotonic() - began)
    except devices.HeldError as error:
        return _fail(command, endings.ending(endings.DEVICE_HELD, message=str(error)))
    except WorkflowEndedError:
        say("the workflow ended before this run", file=sys.stderr)
        return ABANDONED
    except RuntimeError as error:
        say(f"mfulab: {error}", file=sys.stderr)
        return ABANDONED
    if status < 0:
        say(f"ended by {signal.Signals(-status).name}", file=sys.stderr)
    return abs(status)


def in_child(command: list[str], log: str) -> int:
    """Runs `main` in a child process that writes to the file `log`, and ends within POLL_S of this
    one. It is forked where that is safe, as starting a Python takes longer than many a run. Returns
    its exit status (negative: a signal)."""
    from multiprocessing import get_context  # here, as a client's imports are few

    is_safe = system.CAN_FORK_AFTER_IMPORTS
    context = get_context("fork") if is_safe else get_context("spawn")
    child = context.Process(target=_main_of_child, args=(command, log, os.getpid()), daemon=True)
    child.start()
    child.join()
    return child.exitcode or 0


def _main_of_child(command: list[str], log: str, parent: int) -> None:
    os.environ[processes.WORKFLOW] = str(parent)
    with open(log, "w", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        with redirect_stdout(output), redirect_stderr(output):
            sys.exit(main(command))


def _measure(command: list[str], environment: dict[str, str]) -> int:
    """Measures a planned run on a device of its own, within its time limit, and with a row whatever
    happens. Returns the exit status."""
    config_path = command[command.index("--config") + 1]
    config = _config(config_path)
    limit = _limit_s(config, environment)
    row = os.path.join(os.path.dirname(config_path), "row.csv")
    before = _stamp(row)
    parallel = config.get("parallel") or {}
    count = parallel.get("processes", 1) // parallel.get("nodes", 1)
    folder = os.path.dirname(os.path.relpath(config_path, "results"))
    device = (config.get("device") or {}).get("type")
    sweep = budget.read()
    wait_began_s = 0.0
    if sweep is not None:
        wait_began_s = sweep.elapsed_s()
    with devices.claim(device, config_path, environment, count) as claimed:
        if sweep is not None and sweep.elapsed_s() - wait_began_s > devices.POLL_S:
            sweep.note_wait(wait_began_s, sweep.elapsed_s())
        sweep = budget.read()  # again, as runs that had the device meanwhile have noted their time
        left = None
        if sweep is not None:
            left_out = sweep.why_not(folder)
            if left_out:
                return _execute([*command, "--failed", left_out], environment, None)
            left = sweep.limit_s(folder)
        began = time.monotonic()
        status, failure = _in_time(command, claimed, limit, sweep, left)
    took = time.monotonic() - began
    if sweep is not None:
        sweep.note(folder, took)
    if _stamp(row) in (None, before):
        if status == REFUSED:
            return status
        return _fail(command, failure, "--after", str(took))
    if status == HALVED and _has_time(sweep, left, folder):
        return _measure(_with_half(command, config_path), environment)
    # The row is complete, so that a later failure, as in a library at exit, does not matter.
    return 0


def _limit_s(config: dict[str, Any], environment: dict[str, str]) -> float:
    """Seconds that the run may take, from its own config or the sweep's variable."""
    limit = (config.get("timing") or {}).get("time_limit_s")
    return float(limit or environment.get(TIME_LIMIT) or DEFAULT_TIME_LIMIT_S)


def _config(path: str) -> dict[str, Any]:
    """A run's config. Raises RuntimeError if it cannot be read."""
    try:
        config = load_object(path)
        (config.get("timing") or {}).get("time_limit_s")
    except (OSError, ValueError, AttributeError) as error:
        advice = "Give the command again: it is planned anew."
        raise RuntimeError(f"{path}: {error}. {advice}") from error
    return config


def _in_time(
    command: list[str],
    environment: dict[str, str],
    limit: float,
    sweep: budget.Budget | None,
    left: float | None,
) -> tuple[int, str]:
    """Executes a run that may take `limit` seconds, and `left` by the budget of its sweep. Returns
    its exit status, and the ending to record if there is no row."""
    began = time.monotonic()
    killed_before = processes.out_of_memory_kills()
    shorter = limit if left is None else min(limit, left)
    try:
        status = _execute(command, environment, shorter)
    except TimeoutError:
        if sweep is None or left is None or left >= limit:
            return ABANDONED, endings.ending(endings.LATE, limit_s=limit)
        return ABANDONED, sweep.stopped(time.monotonic() - began)
    return status, _failure(status, processes.out_of_memory_kills() > killed_before)


def _has_time(sweep: budget.Budget | None, left: float | None, folder: str) -> bool:
    """True if there is no budget, or it leaves time for a run of a smaller batch."""
    if sweep is None or left is None:
        return True
    return sweep.predicted_s(folder) <= sweep.left_s()


def _with_half(command: list[str], config_path: str) -> list[str]:
    """The command that measures the run with half its batch."""
    smaller = [halved(word) if word == config_path else word for word in command]
    if INSTEAD_OF not in command:
        smaller += [INSTEAD_OF, config_path]
    return smaller


def _killed(command: list[str], environment: dict[str, str]) -> int:
    """Writes the row of a command whose client was killed, unless there is one. Returns the exit
    status."""
    processes.check_workflow(environment)
    if "--config" not in command:
        return ABANDONED
    folder = os.path.dirname(command[command.index("--config") + 1])
    # Snakemake removes a row before its run, so that an existing one is of this run.
    if os.path.exists(os.path.join(folder, "row.csv")):
        return 0
    return _fail(command, endings.ending(endings.UNSUPERVISED))


def _stamp(path: str) -> tuple[int, int] | None:
    """Inode and modification time of a file, which differ once it is replaced; None if it does not
    exist."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns
    return None


def _fail(command: list[str], failure: str, *more: str) -> int:
    """Lets the script write the row of a failed run; returns its exit status."""
    import subprocess

    return subprocess.call([sys.executable, *command, "--failed", failure, *more])


def _failure(status: int, is_out_of_memory: bool) -> str:
    """Ending to record for a run that wrote no row, from its exit status (negative: a signal)."""
    if status == -signal.SIGKILL and is_out_of_memory:
        return endings.ending(endings.MEMORY)
    if status == -signal.SIGINT:
        return endings.ending(endings.INTERRUPTED)
    if status < 0:
        return endings.ending(endings.SIGNALLED, signal=signal.Signals(-status).name)
    return endings.ending(endings.EXITED, status=status)


def _execute(command: list[str], environment: dict[str, str], limit: float | None) -> int:
    """Runs a command and returns its exit status (negative: a signal). Raises TimeoutError after
    killing it at the limit, and WorkflowEndedError."""
    _bound_log()
    try:
        status = _in_worker(command, environment, limit)
        if status is None:
            return _directly(command, environment, limit)
        return status
    finally:
        _bound_log()


def _directly(command: list[str], environment: dict[str, str], limit: float | None) -> int:
    """Runs a command as the worker does: a keeper process in a session of its own ends the run when
    this process ends."""

    def become() -> None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Unbuffered, so that the log can be read meanwhile; faulthandler prints a traceback if it
        # crashes.
        os.execve(  # noqa: S606
            sys.executable, [sys.executable, "-u", "-X", "faulthandler", *command], environment
        )

    client_end, keeper_end = socket.socketpair()
    keeper = os.fork()
    if keeper == 0:
        try:
            os.setsid()
            client_end.close()
            status, _ = processes.supervise(become, [keeper_end.fileno()])
            keeper_end.sendall(b"%d\n" % status)
        finally:
            os._exit(0)
    keeper_end.close()
    try:
        answer = _answer(client_end.fileno(), limit and limit + GRACE_S, environment)
        if answer:
            return int(answer)
        return -signal.SIGKILL  # the keeper was killed, and the run with it
    finally:
        client_end.close()
        os.waitpid(keeper, 0)


def _in_worker(command: list[str], environment: dict[str, str], limit: float | None) -> int | None:
    """Runs a command in the worker, like `_execute`. Returns None if no worker answers."""
    worker = os.environ.get(SOCKET)
    if not worker:
        return None
    request = {"command": command, "folder": os.getcwd(), "environment": environment}
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(worker)
            # The run writes to this process's stdout and stderr, so that its log goes where ours
            # does.
            socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [1, 2])
            answer = _answer(
                connection.fileno(), max(WORKER_START_S, limit or math.inf), environment
            )
            if answer == STARTED:
                answer = _answer(connection.fileno(), limit and limit + GRACE_S, environment)
        except TimeoutError:
            connection.shutdown(socket.SHUT_WR)  # the worker kills the run …
            connection.recv(1)  # … and answers once it is dead
            raise
        except OSError:
            return None
    if answer == WORKFLOW_ENDED:
        raise WorkflowEndedError
    if answer:
        return int(answer)
    return None


def _answer(descriptor: int, limit: float | None, environment: dict[str, str]) -> bytes:
    """Reads one line; returns b"" if the other end was closed. Raises TimeoutError after `limit`
    seconds (None: none), and WorkflowEndedError."""
    end = time.monotonic() + (limit or math.inf)
    line = b""
    while not line.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        ready, _, _ = select.select([descriptor], [], [], min(POLL_S, left))
        if not ready:
            processes.check_workflow(environment)
            _bound_log()
            continue
        byte = os.read(descriptor, 1)
        if not byte:
            return b""
        line += byte
    return line


def _bound_log() -> None:
    """Truncates the log on stdout if it is too long, keeping its beginning. Sets O_APPEND, so that
    all writers continue at the new end."""
    with suppress(OSError):  # stdout is closed
        log = os.fstat(1)
        if stat.S_ISREG(log.st_mode):
            fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_APPEND)
            if log.st_size > LONGEST_LOG:
                os.ftruncate(1, LONGEST_LOG // 2)
                os.write(1, b"\n[cut here: this log grew beyond %d MB]\n" % (LONGEST_LOG >> 20))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
