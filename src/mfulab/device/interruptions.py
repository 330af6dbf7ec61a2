"""Detects interruptions of a measuring process: pauses (SIGSTOP or Ctrl-Z, then SIGCONT) and
changed CPU affinity. The kernel does not count paused time, but a process receives SIGCONT when it
resumes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mfulab.core.said import Said, joined
from mfulab.device import system

_continued = 0  # SIGCONTs received within `heard`


@contextmanager
def heard() -> Iterator[None]:
    """Counts pauses inside the `with` block. Counts none outside the main thread, which cannot
    handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCONT, _count)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, before)


def pauses() -> int:
    """Number of pauses counted so far in this process."""
    return _continued


def _count(number: int, frame: object) -> None:
    global _continued
    _continued += 1


@dataclass(frozen=True)
class Circumstances:
    """State of this process that must not change during a measurement."""

    pauses: int
    cpus: frozenset[int] | None

    def changes(self) -> Said | None:
        """Describes the changes since this was taken; None if there were none."""
        now = circumstances()
        changed = list[Said]()
        if now.pauses > self.pauses:
            changed.append(Said("stopped_meanwhile", count=now.pauses - self.pauses))
        if now.cpus != self.cpus:
            changed.append(
                Said("moved_meanwhile", before=_listed(self.cpus), now=_listed(now.cpus))
            )
        return joined(changed)


def circumstances() -> Circumstances:
    """Current pause count and CPU affinity of the calling thread."""
    return Circumstances(_continued, system.affinity())


def _listed(cpus: frozenset[int] | None) -> str:
    """CPU numbers as text, with ranges joined.

    >>> _listed(frozenset({0, 1, 2, 5}))
    '0-2,5'
    """
    ranges: list[list[int]] = []
    for number in sorted(cpus or ()):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else str(low) for low, high in ranges)
