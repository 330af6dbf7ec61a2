"""Runs a step's script in the warm worker, or in a new process without one; a run that dies still gets its row.

Snakemake starts `python -S -E client.py SCRIPT --config FILE` once a run, so this imports little, and that only of the
standard library (some 25 ms). Exit status 0: there is a row. Anything else: the run was refused and there is none.
"""

import json
import math
import os
import signal
import socket
import sys
import time

if not __package__:  # run as a file: see the package, not this folder
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from mfulab.runtime import devices, processes
from mfulab.runtime.processes import WorkflowEndedError

SOCKET = "MFULAB_WORKER"
STARTED, WORKFLOW_ENDED = b"started\n", b"ended\n"  # what the worker says, beside an exit status
REFUSED = 2  # a script's exit status for a run that must not become a row
ABANDONED = 1
DEFAULT_TIME_LIMIT_S = 600
WORKER_START_S = 120  # importing from a cluster's file system may take long
GRACE_S = 10  # between the end of a run's time limit and its end
POLL_S = 1.0  # between looks at whether the workflow lives, where no worker tells
# Snakemake sets these to a rule's `threads`; how many threads a run measures with, its own config says.
THREADS = (
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def main(command: list[str]) -> int:
    """Runs `command` (a script and its arguments) and returns the exit status."""
    environment = {key: value for key, value in os.environ.items() if key not in THREADS}
    try:
        if "--config" in command:
            return _measure(command, environment)
        status = _execute(command, environment, None)
    except WorkflowEndedError:
        print("the workflow ended before this run", file=sys.stderr)
        return ABANDONED
    if status < 0:
        print(f"ended by {signal.Signals(-status).name}", file=sys.stderr)
    return abs(status)


def _measure(command: list[str], environment: dict[str, str]) -> int:
    """A planned run: on a device of its own, with a time limit, and with a row whatever happens."""
    config_path = command[command.index("--config") + 1]
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file)
    limit = float((config.get("timing") or {}).get("time_limit_s") or DEFAULT_TIME_LIMIT_S)
    with devices.claim((config.get("device") or {}).get("type"), config_path, environment) as claimed:
        began = time.monotonic()
        try:
            killed_before = processes.out_of_memory_kills()
            status = _execute(command, claimed, limit)
            is_out_of_memory = processes.out_of_memory_kills() > killed_before
            failure = _failure(status, is_out_of_memory, os.path.join(os.path.dirname(config_path), "row.csv"))
        except TimeoutError:
            failure = f"took longer than timing.time_limit_s={limit:g}"
    if failure is None:
        return status
    import subprocess

    print(failure, file=sys.stderr)
    return subprocess.call([sys.executable, *command, "--failed", failure, "--after", str(time.monotonic() - began)])


def _failure(status: int, is_out_of_memory: bool, row: str) -> str | None:
    """Message for a run that ended with `status` (negative: a signal) without a row; None if all is well."""
    if status == REFUSED or (status == 0 and os.path.exists(row)):
        return None
    if status == -signal.SIGKILL and is_out_of_memory:
        return "the kernel killed the run's process: out of memory"
    if status < 0:
        return f"the run's process was ended by {signal.Signals(-status).name}"
    return f"the run's process ended with exit status {status} and wrote no row"


def _execute(command: list[str], environment: dict[str, str], limit: float | None) -> int:
    """The exit status (negative: the ending signal). Raises TimeoutError once it is dead, and WorkflowEndedError."""
    status = _in_worker(command, environment, limit)
    return _directly(command, environment, limit) if status is None else status


def _directly(command: list[str], environment: dict[str, str], limit: float | None) -> int:
    import subprocess
    from contextlib import suppress

    # Unbuffered, so that its log can be read while it runs; the handler leaves a traceback where a library crashes.
    python = [sys.executable, "-u", "-X", "faulthandler"]
    process = subprocess.Popen([*python, *command], env=environment, start_new_session=True)
    _end_before_this_process(process.pid)
    processes.prefer_to_kill(process.pid)
    end = time.monotonic() + limit + GRACE_S if limit else math.inf
    try:
        while (left := end - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(POLL_S, left))
            processes.check_workflow(environment)
        raise TimeoutError
    finally:
        processes.kill_group(process.pid)  # the run, or what it left behind
        process.wait()


def _in_worker(command: list[str], environment: dict[str, str], limit: float | None) -> int | None:
    """As `_execute`, or None if no worker answers."""
    connection = _connect()
    if connection is None:
        return None
    request = {"command": command, "folder": os.getcwd(), "environment": environment}
    with connection, connection.makefile("rb") as answers:
        try:
            # The child writes to this process's own standard output and error: its log streams to wherever ours goes.
            socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [1, 2])
            connection.settimeout(WORKER_START_S)
            answer = answers.readline()
            if answer == STARTED:
                connection.settimeout(limit and limit + GRACE_S)
                answer = answers.readline()
        except TimeoutError:
            connection.settimeout(None)
            connection.shutdown(socket.SHUT_WR)  # the worker kills the run …
            connection.recv(1)  # … and tells when it is dead
            raise
        except ConnectionError:
            return None
    if answer == WORKFLOW_ENDED:
        raise WorkflowEndedError
    return int(answer) if answer.endswith(b"\n") else None


def _connect() -> socket.socket | None:
    if not os.environ.get(SOCKET):
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.environ[SOCKET])
    except OSError:
        connection.close()
        return None
    return connection


def _end_before_this_process(group: int) -> None:
    """A signal that ends this process ends the process group first."""

    def handle(number: int, _: object) -> None:
        processes.kill_group(group)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
