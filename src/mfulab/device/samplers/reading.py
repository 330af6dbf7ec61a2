"""A measured value with unit, source and window, or the reason why it is missing; and the protocol
of samplers."""

import functools
import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import ParamSpec, Protocol

from mfulab.core.said import Said, joined, of_source
from mfulab.device.interruptions import circumstances

P = ParamSpec("P")
UNTOLD = Said("no_reason_told")
REFUSED_BY_DRIVER = Said("refused_by_driver")


@dataclass(frozen=True)
class Reading:
    """Value over `window_s` seconds, as reported by `source`. None if it could not be measured,
    with the reason."""

    value: float | None
    unit: str
    source: str
    window_s: float | None = None
    reason: Said | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            given = Said("not_finite", source=self.source, value=str(self.value))
            object.__setattr__(self, "reason", self.reason or given)
            object.__setattr__(self, "value", None)

    @property
    def origin(self) -> str:
        """Source and window as text."""
        if self.window_s is None:
            return self.source
        return f"{self.source} over {self.window_s:.2f} s"


# Readings by name. Each name is a column of the row, with its unit (`sm_active_percent`).
Readings = dict[str, Reading]
Watched = Generator[None, None, Readings]  # yields once, for the window, and returns its readings


Line = dict[str, float | None]  # values that a driver reports now, by column
Probe = Callable[[], Line]
Now = Callable[[], float]  # a clock, in seconds


class Sampler(Protocol):
    """Observes the device between `start` and `stop` and returns its readings. Both are called
    while the device is idle."""

    def start(self) -> None: ...
    def stop(self) -> Readings: ...


class Watching:
    """Sampler made from a generator function, which runs to its `yield` at `start` and to its end
    at `stop`."""

    def __init__(self, begin: Callable[[], Watched]) -> None:
        self._begin = begin
        self._begun: Watched | None = None

    def start(self) -> None:
        self._begun = self._begin()
        next(self._begun)

    def stop(self) -> Readings:
        if self._begun is None:
            raise RuntimeError("stop() before start()")
        try:
            next(self._begun)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
        raise RuntimeError("a sampler yields once")


def sampler(watch: Callable[P, Watched]) -> Callable[P, Watching]:
    """Turns a generator function into a sampler factory. The function's only `yield` stands for the
    window."""

    @functools.wraps(watch)
    def made(*arguments: P.args, **named: P.kwargs) -> Watching:
        return Watching(functools.partial(watch, *arguments, **named))

    return made


@contextmanager
def sampling(samplers: Sequence[Sampler]) -> Iterator[list[Readings]]:
    """Runs samplers around the `with` block and stops them in reverse order, also after an error.
    The yielded list then holds their readings. The readings are empty if the process was paused or
    its CPU affinity changed meanwhile."""
    readings: list[Readings] = [{} for _ in samplers]
    before = circumstances()
    with ExitStack() as stack:
        for place, sampler in enumerate(samplers):
            sampler.start()
            stack.callback(
                lambda place, sampler: readings.__setitem__(place, sampler.stop()), place, sampler
            )
        yield readings
    if changes := before.changes():
        readings[:] = [_refused(each, changes) for each in readings]


def _refused(readings: Readings, reason: Said) -> Readings:
    """Copies readings without their values. Each keeps its own reason, or gets this one."""
    return {
        name: replace(reading, value=None, reason=reading.reason or reason)
        for name, reading in readings.items()
    }


def missing(names: Mapping[str, str], source: str, reason: Said) -> Readings:
    """Empty readings for `names` (name → unit), all with the same reason."""
    return {name: Reading(None, unit, source, reason=reason) for name, unit in names.items()}


def energy(
    joule: float | None, source: str, window_s: float, reason: Said | None = None
) -> Readings:
    """Readings of a window's energy and mean power. Both are empty, with `reason`, if `joule` is
    None."""
    watt = None if joule is None else joule / window_s
    return {
        "window_energy_j": Reading(joule, "J", source, window_s, reason),
        "power_w": Reading(watt, "W", f"{source} ÷ time", window_s, reason),
    }


def largest(readings: Readings, source: str) -> Reading:
    """Largest of several shares of one window. Empty if none is known, with the first one's
    reason."""
    values = [reading.value for reading in readings.values() if reading.value is not None]
    first = next(iter(readings.values()))
    reason = None if values else first.reason
    return Reading(max(values, default=None), "%", source, first.window_s, reason)


def first_available(candidates: Iterable[Readings]) -> Readings:
    """For each name, the first candidate with a value. Its source mentions why earlier candidates
    had none. Without any value, all reasons are joined."""
    offers: dict[str, list[Reading]] = {}
    for readings in candidates:
        for name, reading in readings.items():
            offers.setdefault(name, []).append(reading)
    return {name: _choose(choices) for name, choices in offers.items()}


def _choose(choices: list[Reading]) -> Reading:
    refused = list(itertools.takewhile(lambda choice: choice.value is None, choices))
    reason = joined(of_source(choice.source, choice.reason or UNTOLD) for choice in refused)
    if len(refused) == len(choices):
        if len(refused) > 1:
            return replace(choices[0], reason=reason)
        return choices[0]
    chosen = choices[len(refused)]
    if refused:
        return replace(chosen, source=f"{chosen.source} (instead of {reason})")
    return chosen
