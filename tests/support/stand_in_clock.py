"""Replaces the module `time` with a clock of Unix seconds in a file, shared by all processes of a
sweep.

The clock only advances by what is charged. A copy of the project has it as
`mfulab.lab.runtime.stand_in_clock`.
"""

import fcntl
import os
import struct
from time import sleep

__all__ = ["advance", "monotonic", "perf_counter", "process_time", "sleep", "time"]
CLOCK = "MFULAB_STAND_IN_CLOCK"  # environment variable with the path of the file
START_S = 14.0  # start of Snakemake from a cold disk


def time() -> float:
    """Current time of the clock."""
    with open(os.environ[CLOCK], "rb") as file:
        return struct.unpack("d", file.read())[0]  # type: ignore[no-any-return]


monotonic = perf_counter = time


def process_time() -> float:
    """Seconds that the command has taken when it plans."""
    return START_S


def advance(seconds: float) -> None:
    """Advances the clock."""
    with open(os.environ[CLOCK], "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        now = struct.unpack("d", file.read())[0] + seconds
        file.seek(0)
        file.write(struct.pack("d", now))
