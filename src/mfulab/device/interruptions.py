"""Interruptions of a process that measures: pauses (SIGSTOP, or Ctrl-Z, and SIGCONT after it),
and other CPUs than it began on. The kernel counts no time of a pause, but a process hears when it
goes on."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mfulab.core.said import Said, joined
from mfulab.device import system

_continued = 0  # times that this process went on, while `heard`


@contextmanager
def heard() -> Iterator[None]:
    """Counts pauses within the block; in a thread other than the main one, which hears no signal,
    nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCONT, _count)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, before)


def pauses() -> int:
    """Pauses of this process so far that were heard."""
    return _continued


def _count(number: int, frame: object) -> None:
    global _continued
    _continued += 1


@dataclass(frozen=True)
class Circumstances:
    """State of this process that must not change while something is measured."""

    pauses: int
    cpus: frozenset[int] | None

    def changes(self) -> Said | None:
        """Changes since then; None where nothing has changed."""
        now = circumstances()
        changed = list[Said]()
        if now.pauses > self.pauses:
            changed.append(Said("stopped_meanwhile", {"count": now.pauses - self.pauses}))
        if now.cpus != self.cpus:
            cpus = {"before": _listed(self.cpus), "now": _listed(now.cpus)}
            changed.append(Said("moved_meanwhile", cpus))
        return joined(changed)


def circumstances() -> Circumstances:
    """Pauses so far, and the CPUs that the calling thread may use."""
    return Circumstances(_continued, system.affinity())


def _listed(cpus: frozenset[int] | None) -> str:
    """Numbers of CPUs, ranges joined.

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
