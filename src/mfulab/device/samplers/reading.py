"""One measured value with its source, window and unit, or the reason why it is missing; and what samplers are."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True)
class Reading:
    """A value over `window_s` seconds, reported by `source`; None if it could not be had, for `reason`."""

    value: float | None
    unit: str
    source: str
    window_s: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "reason", self.reason or f"{self.source} gave {self.value}")
            object.__setattr__(self, "value", None)

    @property
    def origin(self) -> str:
        """Source and window, for people."""
        return self.source if self.window_s is None else f"{self.source} over {self.window_s:.2f} s"


# A reading for each name; a name is a column of the row it ends in, its unit included (`sm_active_percent`).
Readings = dict[str, Reading]


class Sampler(Protocol):
    """Watches the device between `start` and `stop`, both called with the device idle, and reads what it did."""

    def start(self) -> None: ...

    def stop(self) -> Readings: ...


@contextmanager
def sampling(samplers: Sequence[Sampler]) -> Iterator[list[Readings]]:
    """Starts samplers and stops each in reverse order, also after an error; then the list holds their readings."""
    readings: list[Readings] = [{} for _ in samplers]
    with ExitStack() as stack:
        for place, sampler in enumerate(samplers):
            sampler.start()
            stack.callback(lambda place, sampler: readings.__setitem__(place, sampler.stop()), place, sampler)
        yield readings


def missing(names: Mapping[str, str], source: str, reason: str) -> Readings:
    """Empty readings for `names` (name → unit), all for one reason."""
    return {name: Reading(None, unit, source, reason=reason) for name, unit in names.items()}


def first_available(candidates: Iterable[Readings]) -> Readings:
    """For each name the first candidate that has a value; where none has, one empty reading with every reason.

    A value that is not from the first source that could have had it says in its source why that one did not.
    """
    offers: dict[str, list[Reading]] = {}
    for readings in candidates:
        for name, reading in readings.items():
            offers.setdefault(name, []).append(reading)
    return {name: _choose(choices) for name, choices in offers.items()}


def _choose(choices: list[Reading]) -> Reading:
    refused: list[Reading] = []
    for reading in choices:
        if reading.value is not None:
            instead = "; ".join(f"{other.source}: {other.reason}" for other in refused)
            return replace(reading, source=f"{reading.source} (instead of {instead})") if refused else reading
        refused.append(reading)
    reasons = dict.fromkeys(f"{other.source}: {other.reason}" for other in refused)
    return replace(choices[0], reason="; ".join(reasons) if len(refused) > 1 else choices[0].reason)
