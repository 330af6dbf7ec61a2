"""Follows a loop: watched by hooks until its steps are alike, then timed by its own marks alone."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from mfulab.loop.interactive.batches import samples_of
from mfulab.loop.interactive.costs import Kind, PhaseCost, describe
from mfulab.loop.interactive.counting import in_compiled_code
from mfulab.loop.interactive.hooks import Call
from mfulab.loop.interactive.moments import Moments
from mfulab.loop.interactive.phases import HOOK_S, Phases
from mfulab.loop.interactive.row import LoopStep, What
from mfulab.loop.interactive.structure import Modules
from mfulab.loop.interactive.unwatched import (
    CALL_S,
    LOOK,
    MARK_RARELY,
    TICKS,
    Assumed,
    UnwatchedSteps,
)
from mfulab.loop.interactive.watched import Check, EndedStep, WatchedSteps
from mfulab.timing.clocks import Clock, EventClock, clock_for

# Stands for the index of a model in a step that the loop notes itself.
NOTED = -1


class Loop:
    """Marks moments of a loop, takes the hooks off while its steps are alike, and puts them on for
    a check. `phases` are those of watched steps. `unwatched` holds the steps that run without hooks
    now; None while hooks are on. `tick_s` is the host time (s) that the end of an unwatched step
    takes. `is_noted` is True if the loop distinguishes its steps itself."""

    def __init__(self, models: Modules, device: torch.device, clock: Clock, counting: bool) -> None:
        events = {
            "forward": self._forward,
            "optimizer": lambda: self.mark("optimizer"),
            "compilation": self._compiles,
        }
        self.phases = Phases(models, events, counting)
        self.clock = clock
        self._device = device
        self.unwatched: UnwatchedSteps | None = None
        self.tick_s = 0.0
        self.is_noted = False

    def open(
        self, settle: Callable[[], None], publish: Callable[[PhaseCost | None, int], None]
    ) -> None:
        """Begins to watch. `settle` is called before each moment. `publish` is called with the cost
        of a step, None if unknown, and the number of such steps."""
        self._publish = publish
        self._thread = threading.get_ident()
        self._explicit = False
        self._moments = Moments(self.clock, self.phases, settle)
        self._check = Check()
        self.unwatched = None
        self.phases.open()
        self._watched = WatchedSteps(self.phases)
        settle()
        self.mark("begin")

    @property
    def watch_s(self) -> float:
        """Host seconds that hooks take in a watched step."""
        return self._watched.spent_s

    @property
    def named(self) -> Mapping[str, Sequence[LoopStep]]:
        """Stretches of each named phase."""
        return self._moments.named

    def mark(self, what: What, name: str = "") -> None:
        """Marks a moment."""
        self._moments.mark(what, name)

    def step(self) -> None:
        """Ends a step; puts the hooks on for the next one if they are off."""
        self._explicit = True
        unwatched = self.unwatched
        if unwatched is not None:
            self.wake()
            if unwatched.of_forwards:  # steps were forward passes so far: the first one begins here
                self.mark("step")
            return
        began = time.perf_counter()
        self.phases.begin()
        self.mark("step")
        if self._judge(of_forwards=False):
            self._watched.spend_more(time.perf_counter() - began)

    def note(self, batch: object) -> None:
        """Records the batch that a step begins with, which distinguishes steps by their shapes."""
        self.is_noted = True
        kind, leading = describe(batch)
        if self.unwatched is not None:
            self.unwatched.call(kind)
            return
        self.phases.calls.described.append(kind)
        self.phases.begin(kind._replace(signature=("forward", *kind.signature)), leading, NOTED)

    def skip(self) -> None:
        """Leaves out what ran since the last step."""
        self.wake()
        self.phases.begin()
        self.mark("skip")

    def named_phase(self, name: str, what: What) -> None:
        """Marks the begin or end of a named phase; hooks are on from there."""
        if self.unwatched is not None:
            self.skip()
        self.phases.begin(Kind(("outside", what, name), ()))
        self.mark(what, name)

    def cut(self, ended: Callable[[], None]) -> list[LoopStep]:
        """Returns the steps since the last cut. `ended` is called once the device has finished
        them."""
        unwatched = self.unwatched
        self.unwatched = None
        if unwatched is not None:
            self._mark_unwatched(unwatched)
        self.mark("end")
        self.clock.synchronise()
        ended()
        done = self.phases.done
        self.phases.done = []
        self._watched.begin()
        return self._moments.cut(done)

    def _compiles(self) -> None:
        if self.unwatched is not None:
            self.unwatched.assumed.compiled.append(self.unwatched.ticks)

    def _forward(self) -> None:
        unwatched = self._check.pop_unmarked()
        if unwatched is not None:
            self._mark_unwatched(unwatched)
            return
        self.mark("forward")
        if not self._explicit:
            self._judge(of_forwards=True)

    def _judge(self, of_forwards: bool) -> bool:
        """Compares the step that has just ended with those before it, and takes the hooks off if
        enough were alike. False if a phase of the step was counted."""
        phases = self.phases
        step = self._watched.end()
        calls = phases.calls.described
        phases.calls.described = calls[-1:] if of_forwards else []
        cost = phases.cost(step.inside)
        counted = any(phase.counted for phase in step.inside)
        if not counted:
            self._watched.spend(step.spent_s)
        if not of_forwards:
            self._publish(None if counted else cost, 1)
        is_known = cost is not None or not phases.counts
        shown = None
        if not counted and not step.compiled and is_known:
            ran = [(phase.entry, phase.kind, phase.samples, phase.through) for phase in step.inside]
            shown = (ran, calls, step.nodes)
        self._check.compare(shown)
        if self._watched.steadiness.note(shown, of_forwards) and not phases.counting:
            self._stop_watching(step, calls, cost, of_forwards)
        return not counted

    def _stop_watching(
        self, step: EndedStep, calls: Sequence[object], cost: PhaseCost | None, of_forwards: bool
    ) -> None:
        resolution_s = self.clock.resolution_s
        if isinstance(self.clock, EventClock):
            resolution_s *= MARK_RARELY
        steadiness = self._watched.steadiness
        most, group = steadiness.between_checks(resolution_s)
        looks = self.phases.calls.look_s * len(calls) <= LOOK * steadiness.step_s
        if not self.phases.stop_watching(self._look if looks or of_forwards else None):
            return
        if not self.tick_s:
            timed = UnwatchedSteps(clock_for(self._device), 0, 2 * TICKS, group)
            began = time.perf_counter()
            for _ in range(TICKS):
                timed.tick()
            self.tick_s = (time.perf_counter() - began) / TICKS + CALL_S
            if of_forwards:
                self.tick_s += HOOK_S
        expected = None
        if looks:
            expected = calls[-1:] if of_forwards else calls
        self._check.rest(step.inside)
        assumed = Assumed(cost, samples_of(step.inside))
        self.unwatched = UnwatchedSteps(
            self.clock, step.nodes, most, group, expected, assumed, of_forwards
        )

    def _look(self, call: Call) -> None:
        unwatched = self.unwatched
        # Calls by another thread, by compiled code and by the backward pass are no steps.
        is_own = (
            unwatched is not None
            and threading.get_ident() == self._thread
            and not in_compiled_code()
        )
        if unwatched is None or not is_own or torch._C._current_autograd_node() is not None:
            return
        described = None
        if unwatched.calls is not None:
            described = self.phases.calls.describe(call)[0]
        if not unwatched.of_forwards:
            unwatched.call(described)
            return
        is_due = not unwatched.tick()
        if not is_due and unwatched.calls is not None:
            is_due = unwatched.calls[0] != described
        if is_due:
            self.wake(call)

    def wake(self, call: Call | None = None) -> None:
        """Puts the hooks on again at the end of a step, if they are off. `call` is the forward pass
        that begins there."""
        unwatched = self.unwatched
        self.unwatched = None
        if unwatched is None:
            return
        self.phases.costs.passed(self._check.entries, unwatched.ticks)
        if not unwatched.of_forwards:
            self._publish(None if unwatched.odd else unwatched.assumed.cost, unwatched.ticks)
        if unwatched.odd:
            self._watched.steadiness.doubt()
        self._check.wake(unwatched, self._watched.steadiness.last)
        self.phases.calls.described = []
        self.phases.listen()
        if call is None:
            self._mark_unwatched(unwatched)
        else:
            self._check.leave_unmarked(unwatched)
            self.phases.before(call)

    def _mark_unwatched(self, unwatched: UnwatchedSteps) -> None:
        self._moments.mark_unwatched(unwatched)
        self._watched.begin()
