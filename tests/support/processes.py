"""Waiting for what other processes do, and whether they still run (from /proc: Linux)."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
HANGS_S = 300  # a test ends after it instead of never; a machine that is slow or busy needs less


def until(
    condition: Callable[[], T], timeout_s: float = HANGS_S, failure: str = "waited in vain"
) -> T:
    """The value of `condition()` once it is true. Raises TimeoutError, saying `failure`, if it is
    not in time."""
    end = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > end:
            raise TimeoutError(failure)
        time.sleep(0.05)
    return answer


def is_running(pid: int) -> bool:
    """True if there is such a process, and it has not ended yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pid_in(path: Path) -> int:
    """The process that a file names, once it does."""
    return int(until(lambda: path.exists() and path.read_text()))
