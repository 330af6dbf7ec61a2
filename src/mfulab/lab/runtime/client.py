"""Runs a measurement's script in the warm worker, or in a new process without one; a run that dies
gets its row. It starts once a run, as `python -S -E client.py SCRIPT --config FILE`: imports are
few. Exit status 0: there is a row."""

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
from contextlib import suppress
from typing import Any

if not __package__:  # run as a file: see the package, not this folder
    sys.path[0] = os.path.abspath(f"{__file__}/../../../..")

from mfulab.core.json_text import load_object
from mfulab.core.printing import say
from mfulab.core.replicates import halved
from mfulab.lab.runtime import budget, devices, endings, processes
from mfulab.lab.runtime.processes import WorkflowEndedError

SOCKET = "MFULAB_WORKER"
STARTED = b"started\n"
WORKFLOW_ENDED = b"ended\n"  # what the worker says, beside an exit status
# a script's exit status for a run that must not become a row: none that argparse or Python gives
REFUSED = 113
HALVED = 112  # of one out of memory that left a config of half its batch
INSTEAD_OF = "--instead-of"  # the config of the run whose batch did not fit
KILLED = "--killed"  # instead of a script: the client of the command behind it was killed
# of runs of whose config timing is no part: ceilings, loads, counting
TIME_LIMIT = "MFULAB_TIME_LIMIT_S"
LONGEST_LOG = 16 << 20  # bytes
ABANDONED = 1
DEFAULT_TIME_LIMIT_S = 600
WORKER_START_S = 120  # importing from a cluster's file system may take long
GRACE_S = 10  # between the end of a run's time limit and its end
POLL_S = 1.0  # between looks at whether the workflow lives, where no worker tells
# Snakemake sets these to a rule's `threads`; how many threads a run measures with, its own config
# says.
LIBRARIES = ("GOTO_NUM", "MKL_NUM", "NUMEXPR_NUM", "OMP_NUM", "OPENBLAS_NUM", "VECLIB_MAXIMUM")
THREADS = tuple(f"{library}_THREADS" for library in LIBRARIES)


def main(command: list[str]) -> int:
    """Runs `command`, a script and its arguments, or after `--killed` writes its row; returns the
    exit status."""
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
        if command[1:2] == ["page"] and (sweep := budget.read()) is not None:
            sweep.note(budget.PAGE, time.monotonic() - began)
    except devices.HeldError as error:
        return _fail(command, endings.ending(endings.DEVICE_HELD, message=str(error)))
    except (WorkflowEndedError, RuntimeError) as error:
        says = "the workflow ended before this run"
        if not isinstance(error, WorkflowEndedError):
            says = f"mfulab: {error}"
        say(says, file=sys.stderr)
        return ABANDONED
    if status < 0:
        say(f"ended by {signal.Signals(-status).name}", file=sys.stderr)
    return abs(status)


def _measure(command: list[str], environment: dict[str, str]) -> int:
    """Measures a planned run: on a device of its own, with a time limit, and with a row whatever
    happens."""
    config_path = command[command.index("--config") + 1]
    config = _config(config_path)
    limit = _limit_s(config, environment)
    row = os.path.join(os.path.dirname(config_path), "row.csv")
    before = _stamp(row)
    jointly = config.get("parallel") or {}
    count = jointly.get("processes", 1) // jointly.get("nodes", 1)
    folder = os.path.dirname(os.path.relpath(config_path, "results"))
    device = (config.get("device") or {}).get("type")
    sweep = budget.read()
    asked_s = 0.0
    if sweep is not None:
        asked_s = sweep.elapsed_s()
    with devices.claim(device, config_path, environment, count) as claimed:
        if sweep is not None and sweep.elapsed_s() - asked_s > devices.POLL_S:
            sweep.note_wait(asked_s, sweep.elapsed_s())
        sweep = budget.read()  # again: other runs have had the device, and told what they took
        left = None
        if sweep is not None:
            if left_out := sweep.why_not(folder):
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
    # a row is written whole: what went wrong after it, such as a library's end, costs nothing
    return 0


def _limit_s(config: dict[str, Any], environment: dict[str, str]) -> float:
    """Seconds that the run may take: by its own config, else by the sweep's."""
    own = (config.get("timing") or {}).get("time_limit_s")
    return float(own or environment.get(TIME_LIMIT) or DEFAULT_TIME_LIMIT_S)


def _config(path: str) -> dict[str, Any]:
    """A run's config. Raises RuntimeError if it cannot be read."""
    try:
        config = load_object(path)
        (config.get("timing") or {}).get("time_limit_s")
    except (OSError, ValueError, AttributeError) as error:
        again = "Give the command again: it is planned anew."
        raise RuntimeError(f"{path}: {error}. {again}") from error
    return config


def _in_time(
    command: list[str],
    environment: dict[str, str],
    limit: float,
    sweep: budget.Budget | None,
    left: float | None,
) -> tuple[int, str]:
    """(exit status, ending if there is no row) of a run that may take `limit` seconds,
    and `left` by the budget of its sweep."""
    began = time.monotonic()
    killed_before = processes.out_of_memory_kills()
    try:
        status = _execute(command, environment, limit if left is None else min(limit, left))
    except TimeoutError:
        if sweep is None or left is None or left >= limit:
            return ABANDONED, endings.ending(endings.LATE, limit_s=limit)
        return ABANDONED, sweep.stopped(time.monotonic() - began)
    return status, _failure(status, processes.out_of_memory_kills() > killed_before)


def _has_time(sweep: budget.Budget | None, left: float | None, folder: str) -> bool:
    """True where the budget, if there is one, has time for a run of a smaller batch."""
    if sweep is None or left is None:
        return True
    return sweep.predicted_s(folder) <= sweep.left_s()


def _with_half(command: list[str], config_path: str) -> list[str]:
    """The command that measures the run with half the batch."""
    smaller = [halved(word) if word == config_path else word for word in command]
    if INSTEAD_OF not in command:
        smaller += [INSTEAD_OF, config_path]
    return smaller


def _killed(command: list[str], environment: dict[str, str]) -> int:
    processes.check_workflow(environment)
    if "--config" not in command:
        return ABANDONED
    folder = os.path.dirname(command[command.index("--config") + 1])
    if os.path.exists(os.path.join(folder, "row.csv")):  # Snakemake removes a row before its run
        return 0
    return _fail(command, endings.ending(endings.UNSUPERVISED))


def _stamp(path: str) -> tuple[int, int] | None:
    """Identity of a file, unlike that of one written later under its name; None without a file."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns
    return None


def _fail(command: list[str], failure: str, *more: str) -> int:
    import subprocess

    return subprocess.call([sys.executable, *command, "--failed", failure, *more])


def _failure(status: int, is_out_of_memory: bool) -> str:
    """Ending of a run's process that wrote no row, by its exit status (negative: a signal)."""
    if status == -signal.SIGKILL and is_out_of_memory:
        return endings.ending(endings.MEMORY)
    if status == -signal.SIGINT:
        return endings.ending(endings.INTERRUPTED)
    if status < 0:
        return endings.ending(endings.SIGNALLED, signal=signal.Signals(-status).name)
    return endings.ending(endings.EXITED, status=status)


def _execute(command: list[str], environment: dict[str, str], limit: float | None) -> int:
    """The exit status (negative: the ending signal). Raises TimeoutError once it is dead, and
    WorkflowEndedError."""
    _bound_log()
    try:
        status = _in_worker(command, environment, limit)
        if status is None:
            return _directly(command, environment, limit)
        return status
    finally:
        _bound_log()


def _directly(command: list[str], environment: dict[str, str], limit: float | None) -> int:
    """Runs as the worker does: by a keeper in a session of its own, which ends the run when this
    process ends."""

    def become() -> None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Unbuffered, so that its log can be read while it runs; the handler leaves a traceback of a
        # crash.
        os.execve(  # noqa: S606
            sys.executable, [sys.executable, "-u", "-X", "faulthandler", *command], environment
        )

    ours, theirs = socket.socketpair()
    if (keeper := os.fork()) == 0:
        try:
            os.setsid()
            ours.close()
            status, _ = processes.supervise(become, [theirs.fileno()])
            theirs.sendall(b"%d\n" % status)
        finally:
            os._exit(0)
    theirs.close()
    try:
        answer = _answer(ours.fileno(), limit and limit + GRACE_S, environment)
        # the keeper was killed, and the run with it
        if answer:
            return int(answer)
        return -signal.SIGKILL
    finally:
        ours.close()
        os.waitpid(keeper, 0)


def _in_worker(command: list[str], environment: dict[str, str], limit: float | None) -> int | None:
    """Exit status as `_execute` gives it, of a run in the worker; None if no worker answers."""
    if not (worker := os.environ.get(SOCKET)):
        return None
    request = {"command": command, "folder": os.getcwd(), "environment": environment}
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(worker)
            # The child writes to this process's own standard output and error: its log streams to
            # wherever ours goes.
            socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [1, 2])
            answer = _answer(
                connection.fileno(), max(WORKER_START_S, limit or math.inf), environment
            )
            if answer == STARTED:
                answer = _answer(connection.fileno(), limit and limit + GRACE_S, environment)
        except TimeoutError:
            connection.shutdown(socket.SHUT_WR)  # the worker kills the run …
            connection.recv(1)  # … and tells when it is dead
            raise
        except OSError:
            return None
    if answer == WORKFLOW_ENDED:
        raise WorkflowEndedError
    if answer:
        return int(answer)
    return None


def _answer(descriptor: int, limit: float | None, environment: dict[str, str]) -> bytes:
    """One line that was read; empty if the other end was closed. Raises TimeoutError and
    WorkflowEndedError."""
    end = time.monotonic() + (limit or math.inf)
    line = b""
    while not line.endswith(b"\n"):
        if (left := end - time.monotonic()) <= 0:
            raise TimeoutError
        if not select.select([descriptor], [], [], min(POLL_S, left))[0]:
            processes.check_workflow(environment)
            _bound_log()
        elif more := os.read(descriptor, 1):
            line += more
        else:
            return b""
    return line


def _bound_log() -> None:
    """Cuts a log that grew too long, and keeps its beginning; whoever writes to it writes at its
    end, also then."""
    with suppress(OSError):  # of a standard output that is closed
        log = os.fstat(1)
        if stat.S_ISREG(log.st_mode):
            fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_APPEND)
            if log.st_size > LONGEST_LOG:
                os.ftruncate(1, LONGEST_LOG // 2)
                os.write(1, b"\n[cut here: this log grew beyond %d MB]\n" % (LONGEST_LOG >> 20))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
