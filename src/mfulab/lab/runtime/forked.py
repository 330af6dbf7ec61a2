"""Draws several figures at once, each in a forked process that shares the tables."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

from mfulab.core.parts import Content
from mfulab.device.cpu import usable_cores
from mfulab.device.system import end_with_parent

# A pool that lost a process (a RuntimeError), or none: no /dev/shm, too little memory, too many processes.
NO_POOL = (ImportError, OSError, RuntimeError)
MOST = 16  # processes: each takes some 0.1 s to fork and to tell what it drew
_work: Callable[[str], Any]


def drawing_cores() -> int:
    """Processes that draw at once; 1 where none can be forked."""
    if sys.platform == "linux":
        return min(MOST, usable_cores())
    return 1


def in_processes(work: Callable[[str], Any], names: Sequence[str]) -> list[Any]:
    """Results of `work` for each name: on Linux by a forked process a core. Here what a dead
    process left, and all where none can be begun."""
    if (cores := min(drawing_cores(), len(names))) < 2:
        return list(map(work, names))
    global _work  # forked with the processes: a closure cannot be sent to one
    _work = work
    begun = dict[str, Future[Any]]()
    made = Content()
    others = set(multiprocessing.active_children())
    with (
        suppress(*NO_POOL),
        ProcessPoolExecutor(
            cores, multiprocessing.get_context("fork"), end_with_parent, (os.getpid(),)
        ) as pool,
    ):
        for name in names:
            begun[name] = pool.submit(_call, name)
    _end(set(multiprocessing.active_children()) - others)
    for name, drawing in begun.items():
        with suppress(BrokenExecutor):
            made[name] = drawing.result()
    return [made[name] if name in made else work(name) for name in names]


def _end(processes: Iterable[BaseProcess]) -> None:
    """Ends what a pool had begun when the next process could not be: nobody else would."""
    for process in processes:
        process.kill()
        process.join()


def _call(name: str) -> Any:
    return _work(name)
