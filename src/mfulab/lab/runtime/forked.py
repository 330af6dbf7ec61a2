"""Runs one function for several figures, or parts of a table, each in a forked process that shares
what was read."""

import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from mfulab.core.parts import Content
from mfulab.device.cpu import usable_cores
from mfulab.device.system import end_with_parent

# Errors of a pool that lost a process, or that cannot start: no /dev/shm, too little memory, too
# many processes.
NO_POOL = (ImportError, OSError, RuntimeError)
MOST_PROCESSES = 16  # processes; each takes about 0.1 s to fork and to return its result
PART = 2000  # items that a process takes at a time; with fewer in all, none is forked
Item = TypeVar("Item")
_work: Callable[[str], Any]


def drawing_cores() -> int:
    """Number of processes that draw at a time; 1 if forking is not supported."""
    if sys.platform == "linux":
        return min(MOST_PROCESSES, usable_cores())
    return 1


def in_processes(work: Callable[[str], Any], names: Sequence[str]) -> list[Any]:
    """Results of `work` for each name. On Linux, each core has a forked process. Results that a
    dead process left out are computed in this process, all of them if no process can start."""
    cores = min(drawing_cores(), len(names))
    if cores < 2:
        return list(map(work, names))
    global _work  # inherited by the forked processes, as a closure cannot be sent to them
    _work = work
    futures = dict[str, Future[Any]]()
    results = Content()
    others = set(multiprocessing.active_children())
    fork = multiprocessing.get_context("fork")
    with (
        suppress(*NO_POOL),
        ProcessPoolExecutor(cores, fork, end_with_parent, (os.getpid(),)) as pool,
    ):
        for name in names:
            futures[name] = pool.submit(_call, name)
    _kill(set(multiprocessing.active_children()) - others)
    for name, future in futures.items():
        with suppress(BrokenExecutor):
            results[name] = future.result()
    return [results[name] if name in results else work(name) for name in names]


def in_parts(work: Callable[[Sequence[Item]], list[Any]], items: Sequence[Item]) -> list[Any]:
    """Results of `work` for the parts of `items`, joined in their order. Parts are worked on side
    by side, in forked processes."""
    starts = map(str, range(0, len(items), PART))
    made = in_processes(lambda start: work(items[int(start) : int(start) + PART]), [*starts])
    return list(itertools.chain.from_iterable(made))


def _kill(processes: Iterable[BaseProcess]) -> None:
    """Kills the processes that a pool started before it failed to start the next one."""
    for process in processes:
        process.kill()
        process.join()


def _call(name: str) -> Any:
    return _work(name)
