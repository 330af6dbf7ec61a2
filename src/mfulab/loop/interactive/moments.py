"""Moments of a loop: marked on a clock while it runs, and cut into steps afterwards."""

from collections.abc import Callable, Sequence

from mfulab.loop.interactive import row
from mfulab.loop.interactive.costs import Phase
from mfulab.loop.interactive.phases import Phases
from mfulab.loop.interactive.row import LoopStep, Mark, What
from mfulab.loop.interactive.unwatched import UnwatchedSteps
from mfulab.timing.clocks import Clock


class Moments:
    """Marks moments on a clock, and which `phases` were over by then. `named` holds the stretches
    of each named phase that were cut so far."""

    def __init__(self, clock: Clock, phases: Phases, settle: Callable[[], None]) -> None:
        self._clock = clock
        self._phases = phases
        self._settle = settle
        self._marks: list[Mark] = []
        self.named: dict[str, list[LoopStep]] = {}

    def mark(self, what: What, name: str = "") -> None:
        """Marks a moment, after a call of `settle`."""
        self._settle()
        self._clock.mark()
        self._marks.append(self._mark(what, name=name))

    def mark_unwatched(self, unwatched: UnwatchedSteps) -> None:
        """Records the moments that unwatched steps have marked."""
        self._marks.append(self._mark("unwatched", unwatched))

    def _mark(self, what: What, unwatched: UnwatchedSteps | None = None, name: str = "") -> Mark:
        over = len(self._phases.done)
        return Mark(what, over, self._phases.hooks.compiled, unwatched, name)

    def cut(self, done: Sequence[Phase]) -> list[LoopStep]:
        """Returns the steps since the last cut, of the phases `done`, and keeps the stretches of
        named ones. Waits for a GPU."""
        marks = self._marks
        self._marks = []
        intervals = self._clock.intervals()
        for name, stretch in row.named_stretches(marks, intervals, self._phases, done):
            self.named.setdefault(name, []).append(stretch)
        return row.steps_of(marks, intervals, self._phases, done)
