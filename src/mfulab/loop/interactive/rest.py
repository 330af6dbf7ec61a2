"""Steps that nothing watches: once enough were alike, hooks come off, and each step is timed by its
end alone."""

import math
import time
from collections.abc import Sequence
from typing import Any

from mfulab.loop.interactive.costs import Cost
from mfulab.loop.interactive.structure import sequence_number
from mfulab.timing.clocks import Clock

# Steps alike, one after another, after which hooks come off; twice as many after each step that
# turned out otherwise.
ENOUGH = 8
MOST_WANTED = 1024
# Without `window.step()` a step is a forward pass, until the first such call shows that it is not.
ENOUGH_FORWARDS = 24
# Hooks return for one step after so much time, and so many steps at least and at most.
CHECK_S = 1.0
FEWEST = 16
MOST = 65536
# What looking at each call's arguments may cost, as a share of a step.
LOOK = 1e-3
# An event costs a GPU's host some microseconds: of the shortest time between two, this many times
# is one in a thousand.
MARK_RARELY = 5
# Ends of steps that are timed to know what one costs.
TICKS = 200
CALL_S = 1e-7  # of the loop's own call, around it


class UnwatchedSteps:
    """Steps like those before, from one watched step to the next; autograd's numbers show others
    cheaply. `clock` marks the end of each `group` of steps, which make `nodes` nodes each, and
    after `most` of them one is watched. `calls` are what forward passes and notes of a step are
    called with, None where looking costs too much. `compiled` numbers the steps in which torch
    compiled. `odd`: the last step was another one; `doubtful`: the next watched one was, so that
    nothing is known of these."""

    __slots__ = (
        "_clock", "_most", "_nodes", "_number", "_wanted", "calls", "compiled", "cost", "doubtful", "group", "marks",
        "odd", "of_forwards", "samples", "seen", "ticks",
    )  # fmt: skip

    def __init__(
        self,
        clock: Clock,
        nodes: int,
        most: int,
        group: int = 1,
        calls: Sequence[object] | None = None,
        cost: Cost | None = None,
        samples: int | None = None,
        of_forwards: bool = False,
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._most = most
        self.group = group
        self.calls = calls
        self.cost = cost
        self.samples = samples
        self.of_forwards = of_forwards
        self._number, self._wanted = (
            sequence_number(),
            0 if calls is None or of_forwards else len(calls),
        )
        self.ticks = self.marks = self.seen = 0
        self.compiled: list[int] = []
        self.odd = self.doubtful = False

    def tick(self) -> bool:
        """Ends a step; False if the next one is to be watched."""
        number = sequence_number()
        self.ticks = ticks = self.ticks + 1
        if number - self._number != self._nodes or self.seen != self._wanted:
            self.odd = True
            self._clock.mark()
            self.marks += 1
            return False
        self._number = number
        self.seen = 0
        if not ticks % self.group:
            self._clock.mark()
            self.marks += 1
        return ticks < self._most

    def call(self, described: object) -> bool:
        """Looks at a call's arguments; False if they are not those expected."""
        if self.calls is None:
            return True
        place = self.seen
        self.seen = self.seen + 1
        if place < len(self.calls) and self.calls[place] == described:
            return True
        self.seen = -MOST  # equal to no number of calls
        return False

    def sizes(self) -> list[int]:
        """Numbers of steps between its marks of the clock."""
        sizes = [self.group] * self.marks
        if self.odd:
            sizes[-1] = self.ticks - self.group * (self.marks - 1)
        return sizes


class Steadiness:
    """Judges from watched steps whether the next ones need to be watched. `last` is what showed of
    the last one, None if that says nothing; `step_s` are host seconds of a step, of those alike."""

    def __init__(self) -> None:
        self._wanted = ENOUGH
        self._alike = 0
        self._began = 0.0
        self.last: Any = None
        self.step_s = 0.0

    def note(self, shown: object, of_forwards: bool) -> bool:
        """Notes a watched step by what shows of it, None if that says nothing; True if the next
        need no watching."""
        now = time.perf_counter()
        if shown is None or shown != self.last:
            if self._alike >= self._wanted:
                self.doubt()
            self._alike = 0
            self.last = shown
            self._began = now
            return False
        self._alike += 1
        if self._alike <= self._wanted or not self.step_s:
            self.step_s = (now - self._began) / self._alike
        return self._alike >= max(self._wanted, ENOUGH_FORWARDS if of_forwards else 0)

    def doubt(self) -> None:
        """Wants more steps alike, after one that turned out otherwise."""
        self._wanted = min(MOST_WANTED, 2 * self._wanted)
        self._alike = 0

    def between_checks(self, resolution_s: float) -> tuple[int, int]:
        """Gives steps from one check to the next, and how many of them share a mark of a clock."""
        step_s = max(self.step_s, 1e-9)
        group = max(1, math.ceil(resolution_s / step_s))
        most = min(MOST, max(FEWEST, int(CHECK_S / step_s)))
        return group * math.ceil(most / group), group
