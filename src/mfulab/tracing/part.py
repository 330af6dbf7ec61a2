"""Selects the part of a file of gigabytes that is read: steps from its middle, as many as fit into
a fixed amount of memory."""

import functools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mfulab.core.said import Said
from mfulab.tracing.chrome import Event, Events, Stream, nanoseconds
from mfulab.tracing.trace import Floats
from mfulab.tracing.window import is_step

LARGE_BYTES = 1 << 30  # unpacked; smaller files are read whole
MOST_EVENTS = 400_000  # kept, unless one step has more
SAMPLED = 16  # one of so many events is sampled, to estimate how many begin between two times
MARGIN = 0.5  # of the longest step, on both sides: devices lag behind the host
Ranges = Floats  # rows of begin and end, µs


@dataclass(frozen=True)
class TracePart:
    """Selects events that begin between two times in µs. Marks of steps must begin between two
    narrower times, so that no step is cut."""

    begin: float
    end: float
    first_mark: float
    last_mark: float
    note: Said

    def kept(self, events: Events) -> list[Event | None]:
        """Events of this part, and those that have no time."""
        return [event for event in events if event is None or self._holds(event)]

    def _holds(self, event: Event) -> bool:
        begin = _time(event)
        if begin is None:
            return event.ph != "X"
        if not self.begin <= begin < self.end:
            return False
        is_inside = self.first_mark <= begin < self.last_mark
        return is_inside or not _is_mark(event)


def part_of(path: Path) -> TracePart | None:
    """Reads a large file once to choose a part of it; None for a file that is read whole."""
    stream = Stream(path)
    if stream.unpacked_bytes < LARGE_BYTES:
        return None
    sampled = array("d")
    marks = list[tuple[float, float]]()
    for events in stream.batches(is_kept=False):
        sampled.extend(_begins(events[::SAMPLED]))
        marks += _marks(events)
    times = np.sort(np.array(sampled))
    if SAMPLED * len(times) <= MOST_EVENTS:
        return None
    if marks:
        return _of_steps(np.array(sorted(marks)), times)
    return _of_time(times)


def _begins(events: Events) -> Iterator[float]:
    """Yields the begins (µs) of events that have a length."""
    for event in events:
        if event is None or event.ph != "X":
            continue
        time = _time(event)
        if time is not None:
            yield time


def _marks(events: Events) -> Iterator[tuple[float, float]]:
    """Yields begin and end (µs) of each mark of a step."""
    for event in events:
        if event is None or not _is_mark(event):
            continue
        begin = _time(event)
        length = nanoseconds(event.dur)
        if begin is not None and length:
            yield begin, begin + length / 1000


def _of_steps(marks: Ranges, times: Floats) -> TracePart:
    """Part with the middle step and as many steps around it as there is room for."""
    first = last = len(marks) // 2
    while last - first + 1 < len(marks):
        before = max(0, first - 1)
        after = min(len(marks) - 1, last + 1)
        begin, end = _reach(marks[before : after + 1])
        if _events(times, begin, end) > MOST_EVENTS:
            break
        first, last = before, after
    chosen = marks[first : last + 1]
    begin, end = _reach(chosen)
    share = 100 * _events(times, begin, end) / (SAMPLED * len(times))
    note = Said("part_of_steps", steps=len(chosen), all=len(marks), percent=share)
    return TracePart(begin, end, chosen[0, 0], chosen[-1, 1], note)


def _of_time(times: Floats) -> TracePart:
    """Middle part of a file without marks of steps."""
    room = MOST_EVENTS // SAMPLED
    first = (len(times) - room) // 2
    begin, end = times[[first, first + room]].tolist()
    share = 100 * room / len(times)
    return TracePart(begin, end, begin, end, Said("part_of_time", percent=share))


def _reach(marks: Ranges) -> tuple[float, float]:
    """Begin and end (µs) of consecutive steps, with a margin on both sides for the work that they
    launched."""
    margin = MARGIN * float((marks[:, 1] - marks[:, 0]).max())
    return float(marks[0, 0]) - margin, float(marks[:, 1].max()) + margin


def _events(times: Floats, begin: float, end: float) -> int:
    """Estimated number of events that begin between two times."""
    first, last = np.searchsorted(times, (begin, end))
    return SAMPLED * int(last - first)


def _time(event: Event) -> float | None:
    """Begin of an event in µs; None if unknown."""
    if type(event.ts) is float or type(event.ts) is int:
        return event.ts
    time = nanoseconds(event.ts)
    if time is None:
        return None
    return time / 1000


def _is_mark(event: Event) -> bool:
    return event.cat in ("user_annotation", "cpu_op", "Operator") and _named_step(event.name)


@functools.lru_cache(maxsize=1 << 14)
def _named_step(name: object) -> bool:
    return isinstance(name, str) and is_step(name)
