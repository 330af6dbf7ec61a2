"""Draws several figures at once: a forked process a core, which takes the next name when it is done."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from mfulab.device.cpu import usable_cores

MOST = 16  # processes: each takes some 0.1 s to fork and to tell what it drew


def drawing_cores() -> int:
    """Processes that draw at once; 1 where none can be forked."""
    return min(MOST, usable_cores()) if sys.platform == "linux" else 1


def in_processes(work: Callable[[str], Any], names: Sequence[str]) -> list[Any]:
    """Results of `work` for each of 256 names or fewer: on Linux by a forked process a core, here what one lost."""
    if (cores := min(drawing_cores(), len(names))) < 2:
        return list(map(work, names))
    fork = multiprocessing.get_context("fork")
    turns, giving = os.pipe()  # of a byte each: a process takes the next when it is done, and no lock dies with it
    os.write(giving, bytes(range(len(names))))
    os.close(giving)

    def serve(to: Connection) -> None:
        to.send({name: work(name) for turn in iter(partial(os.read, turns, 1), b"") for name in [names[turn[0]]]})

    found: dict[str, Any] = {}
    answers = []
    for _ in range(cores):
        here, there = fork.Pipe(duplex=False)
        fork.Process(target=serve, args=(there,)).start()
        there.close()  # the process has the other end alone, and reading ends with it
        answers.append(here)
    for here in answers:
        with suppress(EOFError):
            found |= here.recv()
    os.close(turns)
    return [found[name] if name in found else work(name) for name in names]
