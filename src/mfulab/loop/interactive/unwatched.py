"""Steps that nothing watches: once enough steps were alike, hooks come off, and each step is timed
by its end alone."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mfulab.loop.interactive.costs import PhaseCost
from mfulab.loop.interactive.structure import sequence_number
from mfulab.timing.clocks import Clock

# Steps alike in a row after which hooks come off; twice as many after each step that turned out
# otherwise.
ENOUGH = 8
MOST_WANTED = 1024
# Without `window.step()` a step is a forward pass, until the first such call.
ENOUGH_FORWARDS = 24
# Hooks return for one step after this time, and at least and at most this many steps.
CHECK_S = 1.0
FEWEST = 16
MOST_UNWATCHED = 65536
# Largest share of a step that looking at each call's arguments may take.
LOOK = 1e-3
# An event costs a GPU's host some microseconds: a thousandth of this many times the shortest time
# between two.
MARK_RARELY = 5
# Ends of steps that are timed to find the cost of one.
TICKS = 200
CALL_S = 1e-7  # time of the loop's own call around it


@dataclass(slots=True)
class Assumed:
    """Cost and samples that each unwatched step is taken to have. `doubtful` is True if the next
    watched step differed, so that the cost is unknown. `compiled` numbers the steps in which torch
    compiled."""

    cost: PhaseCost | None = None
    samples: int | None = None
    doubtful: bool = False
    compiled: list[int] = field(default_factory=list)

    @property
    def sure_cost(self) -> PhaseCost | None:
        """Cost of each step; None if it is unknown or in doubt."""
        if self.doubtful:
            return None
        return self.cost


class UnwatchedSteps:
    """Steps taken to be like those before them, from one watched step to the next. Autograd's
    sequence numbers reveal other steps cheaply. `clock` marks the end of each `group` of steps.
    Each step makes `nodes` nodes, and after `most` steps one is watched. `calls` are the expected
    arguments of a step's forward passes and notes, None if looking costs too much. `odd` is True if
    the last step differed, which ends them."""

    __slots__ = (
        "_clock",
        "_most",
        "_nodes",
        "_number",
        "_wanted",
        "assumed",
        "calls",
        "group",
        "odd",
        "of_forwards",
        "seen",
        "ticks",
    )

    def __init__(
        self,
        clock: Clock,
        nodes: int,
        most: int,
        group: int = 1,
        calls: Sequence[object] | None = None,
        assumed: Assumed | None = None,
        of_forwards: bool = False,
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._most = most
        self.group = group
        self.calls = calls
        self.assumed = assumed or Assumed()
        self.of_forwards = of_forwards
        self._number = sequence_number()
        self._wanted = 0  # number of calls in a step
        if calls is not None and not of_forwards:
            self._wanted = len(calls)
        self.ticks = self.seen = 0
        self.odd = False

    def tick(self) -> bool:
        """Ends a step; False if the next one is to be watched."""
        number = sequence_number()
        self.ticks = ticks = self.ticks + 1
        if number - self._number != self._nodes or self.seen != self._wanted:
            self.odd = True
            self._clock.mark()
            return False
        self._number = number
        self.seen = 0
        if not ticks % self.group:
            self._clock.mark()
        return ticks < self._most

    def call(self, described: object) -> bool:
        """Compares a call's arguments with the expected ones; False if they differ."""
        if self.calls is None:
            return True
        index = self.seen
        self.seen += 1
        if index < len(self.calls) and self.calls[index] == described:
            return True
        self.seen = -MOST_UNWATCHED  # no number of calls in a step
        return False

    def sizes(self) -> list[int]:
        """Numbers of steps between the marks of the clock."""
        groups, rest = divmod(self.ticks, self.group)
        sizes = [self.group] * groups
        if self.odd and rest:
            sizes.append(rest)
        return sizes


class Steadiness:
    """Decides from watched steps whether the next ones need to be watched. `last` is what the last
    step showed, None if nothing. `step_s` is the host time (s) of a step among those alike."""

    def __init__(self) -> None:
        self._wanted = ENOUGH
        self._alike = 0
        self._began = 0.0
        self.last: Any = None
        self.step_s = 0.0

    def note(self, shown: object, of_forwards: bool) -> bool:
        """Records what a watched step showed, None if nothing. True if the next steps need no
        watching."""
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
        wanted = self._wanted
        if of_forwards:
            wanted = max(wanted, ENOUGH_FORWARDS)
        return self._alike >= wanted

    def doubt(self) -> None:
        """Requires more steps alike, after one that turned out otherwise."""
        self._wanted = min(MOST_WANTED, 2 * self._wanted)
        self._alike = 0

    def between_checks(self, resolution_s: float) -> tuple[int, int]:
        """Returns the number of steps from one check to the next, and how many of them share a mark
        of a clock with this resolution."""
        step_s = max(self.step_s, 1e-9)
        group = max(1, math.ceil(resolution_s / step_s))
        most = min(MOST_UNWATCHED, max(FEWEST, int(CHECK_S / step_s)))
        return group * math.ceil(most / group), group
