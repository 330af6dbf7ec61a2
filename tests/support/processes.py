"""Waits for other processes, and checks whether they still run (through /proc on Linux)."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
HANGS_S = 300  # so that a test does not hang; enough for a slow or busy machine


def until(
    condition: Callable[[], T], timeout_s: float = HANGS_S, failure: str = "waited in vain"
) -> T:
    """Value of `condition()` once it is true. Raises TimeoutError with the message `failure` after
    `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > end:
            raise TimeoutError(failure)
        time.sleep(0.05)
    return answer


def is_running(pid: int) -> bool:
    """True if this process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pid_in(path: Path) -> int:
    """Process id in a file, waiting until it is written."""
    return int(until(lambda: path.exists() and path.read_text()))
