"""Watched steps: where the running one began, and the check that one is of unwatched steps."""

import statistics
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from mfulab.loop.interactive import structure
from mfulab.loop.interactive.costs import Kind, Phase
from mfulab.loop.interactive.phases import Phases
from mfulab.loop.interactive.unwatched import Steadiness, UnwatchedSteps


class Reached(NamedTuple):
    """Progress of a loop: phases that are over, the number of autograd's next node, compilations,
    and host seconds inside hooks."""

    phases: int
    number: int
    compiled: int
    spent_s: float

    @classmethod
    def now(cls, phases: Phases) -> "Reached":
        """Progress of the loop that `phases` follow."""
        hooks = phases.hooks
        return cls(len(phases.done), structure.sequence_number(), hooks.compiled, hooks.spent_s)


class EndedStep(NamedTuple):
    """Watched step that has just ended: its phases, the nodes that autograd made in it, whether
    torch compiled in it, and host seconds inside hooks."""

    inside: Sequence[Phase]
    nodes: int
    compiled: bool
    spent_s: float


class WatchedSteps:
    """Follows steps that hooks watch, from one to the next. `steadiness` decides how long they need
    to be watched."""

    def __init__(self, phases: Phases) -> None:
        self.steadiness = Steadiness()
        self._phases = phases
        self._spent = array("d")  # host seconds inside hooks, by step
        self._reached = Reached.now(phases)

    def begin(self) -> None:
        """Begins a step here, whatever ran before it."""
        self._reached = Reached.now(self._phases)

    def end(self) -> EndedStep:
        """Ends a step; the next one begins."""
        before = self._reached
        self.begin()
        now = self._reached
        return EndedStep(
            inside=self._phases.done[before.phases :],
            nodes=now.number - before.number,
            compiled=now.compiled != before.compiled,
            spent_s=now.spent_s - before.spent_s,
        )

    def spend(self, spent_s: float) -> None:
        """Records the host seconds that hooks took in a step."""
        self._spent.append(spent_s)

    def spend_more(self, spent_s: float) -> None:
        """Adds host seconds to those of the last step."""
        self._spent[-1] += spent_s

    @property
    def spent_s(self) -> float:
        """Host seconds that hooks take in a step. The median, since hooks take longer in a step
        that ends a count; 0 if none is known."""
        if self._spent:
            return statistics.median(self._spent)
        return 0.0


class Check:
    """Compares unwatched steps with the watched one after them. `entries` are the kinds that the
    phases of an unwatched step are taken to begin as."""

    def __init__(self) -> None:
        self.entries: Sequence[Kind] = ()
        self._expected: object = None
        self._unproven: UnwatchedSteps | None = None
        self._unmarked: UnwatchedSteps | None = None

    def rest(self, inside: Sequence[Phase]) -> None:
        """Records the phases of the last step before unwatched ones."""
        self.entries = [phase.entry for phase in inside]

    def wake(self, unwatched: UnwatchedSteps, expected: object) -> None:
        """Records unwatched steps that are over. Unless the last of them was odd, they are in doubt
        if the next watched step shows other than `expected`."""
        self._unproven = None if unwatched.odd else unwatched
        self._expected = expected

    def compare(self, shown: object) -> None:
        """Compares a watched step; one that shows nothing (None), as a counted one, is passed
        over."""
        if self._unproven is not None and shown is not None:
            self._unproven.assumed.doubtful = shown != self._expected
            self._unproven = None

    def leave_unmarked(self, unwatched: UnwatchedSteps) -> None:
        """Keeps unwatched steps that a forward pass has ended, until it is marked."""
        self._unmarked = unwatched

    def pop_unmarked(self) -> UnwatchedSteps | None:
        """Returns the kept steps, and forgets them; None if there are none."""
        unwatched = self._unmarked
        self._unmarked = None
        return unwatched
