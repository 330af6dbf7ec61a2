"""Steps of a loop from its marks: how long each took, what ran in it, and whether counting slowed it down."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mfulab.interactive.kinds import Cost
from mfulab.interactive.phases import Phase

What = Literal["begin", "forward", "optimizer", "step", "skip", "end"]


class Mark(NamedTuple):
    """A moment, and how many phases were over by then."""

    what: What
    phases: int


@dataclass(frozen=True)
class Step:
    """One step: seconds, its FLOPs where they are known, samples that went forward, and whether it was counted."""

    seconds: float
    cost: Cost | None
    samples: int | None
    counted: bool


# What bounds steps: the loop's own word, else forward passes, else the optimiser's steps.
_BOUNDS: tuple[tuple[What, tuple[What, ...]], ...] = (
    ("step", ("begin", "step", "skip")),
    ("forward", ("forward", "end", "skip")),
    ("optimizer", ("begin", "optimizer", "skip")),
)


def stretches(marks: Sequence[Mark], intervals: Iterable[float]) -> list[tuple[float, slice]]:
    """Seconds and phases of each step, from marks and the seconds between consecutive ones; `skip` ends no step."""
    present = {mark.what for mark in marks}
    wanted = next((bounds for what, bounds in _BOUNDS if what in present), ())
    moments = itertools.accumulate(intervals, initial=0.0)
    chosen = [(mark, moment) for mark, moment in zip(marks, moments, strict=True) if mark.what in wanted]
    return [
        (end - begin, slice(before.phases, after.phases))
        for (before, begin), (after, end) in itertools.pairwise(chosen)
        if after.what != "skip"
    ]


def samples_of(phases: Sequence[Phase]) -> int | None:
    """Samples that went forward, each call's batch; None if a call has no tensor."""
    sizes = [phase.samples for phase in phases if phase.entry.words[0] == "forward"]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def timed(steps: Sequence[Step]) -> list[Step]:
    """The steps whose time is a measure: those that were not counted, or all of them where all were."""
    undisturbed = [step for step in steps if not step.counted]
    return undisturbed or list(steps)


def known(steps: Sequence[Step]) -> list[Step]:
    """The steps whose FLOPs are known."""
    return [step for step in steps if step.cost is not None]
