"""Turns the counter on for the first phase of each kind, and for as long as a pass of compiled code
needs."""

from collections.abc import Mapping, Sequence

import torch

from mfulab.core.said import Said, as_told
from mfulab.flops.counter import Operations
from mfulab.flops.layers import LayerTracker
from mfulab.flops.useful import RealTokens
from mfulab.loop.interactive import structure
from mfulab.loop.interactive.compiled import CompiledPhases
from mfulab.loop.interactive.costs import Kind, Phase
from mfulab.loop.interactive.counting import LoopCounter, in_compiled_code
from mfulab.loop.interactive.hooks import Call
from mfulab.loop.interactive.known_costs import KnownCosts
from mfulab.loop.interactive.passes import MOST_PENDING, Passes
from mfulab.loop.interactive.structure import Modules

MOST_OWED = 8  # phases counted until one that began inside compiled code is counted
MOST_CHAINED = 64  # forward passes counted in a row, until a backward pass through them


class Switch:
    """Turns the counter on and off as phases begin. `counter` is None while it is off. `unused` are
    modules that ran in no counted phase; `failure` is the reason why counting was given up."""

    def __init__(self, models: Modules, is_asked: bool, compiled: CompiledPhases) -> None:
        self.models = models
        self.is_asked = is_asked
        self.compiled = compiled
        self.costs = KnownCosts()
        self.counter: LoopCounter | None = None
        self.failure: Said | None = None
        self.unused: set[str] | None = None
        self._real: dict[Kind, RealTokens] = {}
        self._graphs_before = 0
        self._phases_to_retry = 0
        # Number of further forward passes of compiled code to count: a backward pass can be counted
        # only if all forward passes that it goes through were.
        self._forwards_to_count = MOST_CHAINED if compiled.is_whole else 0

    def decide(
        self, phase: Phase, passes: Passes, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Decides whether a phase that begins is counted; `optimizers` are those inside a step."""
        is_wanted = self._wants(phase)
        if is_wanted and self.counter is None and self._is_compiled_backward(phase):
            self._count_from_forward(passes.passed)
            is_wanted = False
        if self._ends_chain(phase, is_wanted, passes):
            self._forwards_to_count = 0
        self._phases_to_retry = max(0, self._phases_to_retry - 1)
        phase.counted = self._turn(is_wanted, optimizers)
        self._graphs_before = structure.graphs_compiled()

    def _wants(self, phase: Phase) -> bool:
        if not self.is_asked or self.failure:
            return False
        return self.costs.wants(phase.entry) or self._phases_to_retry > 0 or self._is_chained(phase)

    def _is_chained(self, phase: Phase) -> bool:
        """True for a forward pass after counted ones of compiled code, since one backward pass may
        go through all of them."""
        is_forward = phase.entry.signature[0] == "forward" and torch.is_grad_enabled()
        if not is_forward or self.counter is None or not self._forwards_to_count:
            return False
        self._forwards_to_count -= 1
        return True

    def _is_compiled_backward(self, phase: Phase) -> bool:
        return phase.entry.signature[0] == "backward" and self.compiled.covers(phase.entry)

    def _ends_chain(self, phase: Phase, is_wanted: bool, passes: Passes) -> bool:
        begun_as = phase.entry.signature[0]
        if begun_as == "outside":
            return passes.forwards > 0
        return begun_as == "backward" and is_wanted

    def _turn(self, is_wanted: bool, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """Turns the counter on or off; True if it is on. Neither can happen in compiled code: it
        waits for a phase that begins elsewhere, and the count covers those between."""
        starts = is_wanted and self.counter is None
        stops = self.counter is not None and not (is_wanted and self.counter.sees_all)
        if (starts or stops) and in_compiled_code():
            self._phases_to_retry = MOST_OWED if starts else 0
            return stops
        if stops:
            self.stop()
        if is_wanted and self.counter is None:
            self._start(optimizers)
        return is_wanted

    def _count_from_forward(self, passed: Sequence[Phase]) -> None:
        """Has the forward passes of a backward pass counted with it the next time. These ran
        compiled, and so would their backward pass, in which a counter sees little."""
        for phase in passed:
            self.costs.doubt(phase.entry, phase.entry)
        self._forwards_to_count = MOST_PENDING

    def _start(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        models = torch.nn.ModuleDict({str(index): model for index, model in enumerate(self.models)})
        counter = LoopCounter(LayerTracker(models))
        counter.__enter__()
        for optimizer in optimizers:
            counter.layers.begin(optimizer)
        self.counter = counter

    def stop(self) -> None:
        """Turns the counter off."""
        counter = self.counter
        self.counter = None
        if counter is not None:
            counter.__exit__(None, None, None)
            unused = counter.layers.unused
            if unused is not None:
                self.unused = unused if self.unused is None else self.unused & unused

    def fail(self, error: Exception) -> None:
        """Gives up counting."""
        self.failure = as_told(f"{type(error).__name__}: {error}")
        if not in_compiled_code():
            self.stop()

    def note_call(self, call: Call, entry: Kind, is_first: bool) -> None:
        """Records the call that a counted forward pass begins with. `is_first` is True if the
        counter began with it."""
        if self.counter is None:
            return
        if is_first and not structure.is_compiled_in_place(call.module):
            self.counter.layers.begin(call.module)
        keywords: Mapping[str, object] = call.keywords
        real = structure.real_tokens_of(call.arguments, keywords)
        if real is not None:
            self._real[entry] = real

    def learn(self, phase: Phase, passes: Passes) -> None:
        """Records the cost of a phase that is over if it was counted, or that its cost is
        missing."""
        entry = phase.entry
        counter = None
        if phase.counted:
            counter = self.counter
        if counter is not None and counter.error:
            self.failure = counter.error
        elif self._graphs_before != structure.graphs_compiled():
            pass  # a phase in which torch compiled differs from the next of its kind
        elif counter is not None and counter.sees_all:
            of_forward = passes.passed[-1].entry if entry.signature[0] == "backward" else entry
            real = self._real.get(of_forward)
            self.costs.note(entry, phase.kind, counter.operations, real)
        elif not self.costs.has(phase.kind):
            self.costs.doubt(entry, phase.kind)

    def forget(self) -> None:
        """Drops the counted operators of a phase that is over."""
        if self.counter is not None:
            self.counter.operations = Operations()
            self.counter.follow((), ())
