"""Runs a step's script in the warm worker, or in a new process where there is none; a run that dies still gets its row.

Started by Snakemake as `python -S -E client.py SCRIPT --config FILE` once a run, so it imports the standard library alone
and little of it. Exit status 0: there is a row. Anything else: the run was refused and there is none.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

SOCKET = "MFULAB_WORKER"
REFUSED = 2  # a script's exit status for a run that must not become a row
WORKER_START_S = 120
GRACE_S = 10  # between the end of a run's time limit and its end


def main(command: list[str]) -> int:
    """Runs `command` (a script and its arguments) and returns the exit status."""
    limit = _time_limit(command)
    try:
        ended = _in_worker(command, limit) if os.environ.get(SOCKET) else None
        if ended is None:
            ended = _directly(command, limit)
    except TimeoutError:
        ended = f"took longer than timing.time_limit_s={limit:g}"
    if limit is None or ended in (0, REFUSED):  # only a run has a row to write
        return int(ended)
    message = ended if isinstance(ended, str) else _describe(ended)
    print(message, file=sys.stderr)
    return subprocess.call([sys.executable, *command, "--failed", message])


def _time_limit(command: list[str]) -> float | None:
    """Seconds that a run may take; None for a script that is no run."""
    if "--config" not in command:
        return None
    with open(command[command.index("--config") + 1], encoding="utf-8") as file:
        config = json.load(file)
    return float(config.get("timing", {}).get("time_limit_s") or 600)


def _describe(status: int) -> str:
    if status < 0:
        hint = " (out of memory?)" if -status == signal.SIGKILL else ""
        return f"the run's process was ended by {signal.Signals(-status).name}{hint}"
    return f"the run's process ended with exit status {status} and wrote no row"


def _directly(command: list[str], limit: float | None) -> int:
    process = subprocess.Popen([sys.executable, *command], start_new_session=True)
    _forward_signals(lambda number: os.killpg(process.pid, number))
    try:
        return process.wait(limit and limit + GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise TimeoutError from None


def _in_worker(command: list[str], limit: float | None) -> int | None:
    """The run's exit status (negative: the signal that ended it), or None where no worker answers."""
    connection = _connect(os.environ[SOCKET])
    if connection is None:
        return None
    request = {"command": command, "folder": os.getcwd(), "environment": dict(os.environ)}
    # The child writes to this process's own standard output and error: its log streams to wherever ours goes.
    socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [1, 2])
    _forward_signals(lambda number: connection.close())
    connection.settimeout(limit and limit + GRACE_S)
    with connection, connection.makefile() as answer:
        line = answer.readline()
    return int(line) if line.strip() else -signal.SIGKILL


def _connect(path: str) -> socket.socket | None:
    """A connection to the worker, waiting while it is still importing; None where it is gone."""
    end = time.monotonic() + WORKER_START_S
    while time.monotonic() < end and os.path.isdir(os.path.dirname(path)):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection
        except FileNotFoundError:  # still importing: the socket appears when it answers
            connection.close()
            time.sleep(0.05)
        except OSError:
            return None
    return None


def _forward_signals(act: Callable[[int], object]) -> None:
    """Acts on the run before this process ends by a signal."""

    def handle(number: int, _: object) -> None:
        act(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
