"""Phases of a loop. One begins at each forward and each backward pass, after each of these, and at
each step. Every phase is described cheaply when it begins, and by what ran in it when it ends. The
first of its kind runs under a counter, which sees each operator that runs, outside models too. All
others are timed undisturbed and cost what the first of their kind cost. A phase that began like a
counted one and ran otherwise has no cost, and the next one is counted."""

import operator
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.autograd.graph import GradientEdge

from mfulab.core.errors import drop_own_frames
from mfulab.core.said import Said
from mfulab.flops.layers import outermost
from mfulab.loop.interactive import structure
from mfulab.loop.interactive.compiled import CompiledPhases
from mfulab.loop.interactive.costs import Kind, Phase, PhaseCost, Sums, describe
from mfulab.loop.interactive.counting import in_compiled_code, state
from mfulab.loop.interactive.endings import Ending, Endings
from mfulab.loop.interactive.hooks import Call, Hook, Hooks, skip_frame
from mfulab.loop.interactive.known_costs import KnownCosts
from mfulab.loop.interactive.passes import Passes
from mfulab.loop.interactive.states import Event, LoopState, LoopThread
from mfulab.loop.interactive.structure import Modules, Shape, Structure
from mfulab.loop.interactive.switch import Switch

HOOK_S = 3e-6  # host time that a hook adds to a call
_IS_TRAINED = operator.attrgetter("requires_grad")
_OUTSIDE = Kind(("outside",), ())
_FAILED = Kind(("failed",), ())
_NO_COST = PhaseCost()
_DONE = Phase(_OUTSIDE, _OUTSIDE)


class DescribedCalls:
    """Describes forward passes by their arguments. `described` are those since the caller last
    cleared it. `look_s` is the host time (s) of the last description, with a hook of its own."""

    def __init__(self, models: Modules) -> None:
        self.models = models
        self._trainable = [list(model.parameters()) for model in models]
        self.described: list[Kind] = []
        self.look_s = 0.0
        self.is_nested = False  # True once a call of a model was part of another
        self._handled: BaseException | None = None

    def note(self, call: Call, depth: int) -> None:
        """Records whether a call is part of another. A call of the same module uncompiled, as under
        the counter, is not."""
        is_twin = call.module is not self.models[call.model_index]
        self.is_nested = self.is_nested or (depth > 1 and not is_twin)

    def begin(self, call: Call) -> tuple[Kind, Shape]:
        """Returns the kind that a forward pass begins as, and its batch."""
        self._handled = sys.exc_info()[1]  # the loop itself may be in an except clause
        began = time.perf_counter()
        kind, batch = self.describe(call)
        self.look_s = time.perf_counter() - began + HOOK_S
        self.described.append(kind)
        return kind, batch

    def has_failed(self) -> bool:
        """True if the forward pass that ends now ends with an error: hooks are called then too."""
        return sys.exc_info()[1] not in (None, self._handled)

    def describe(self, call: Call) -> tuple[Kind, Shape]:
        """Describes a call; also returns its batch."""
        arguments, batch = describe((call.arguments, call.keywords))
        weights = self._trainable[call.model_index]
        device = next((weight.device.type for weight in weights), "cpu")
        autocast = None
        if torch.is_autocast_enabled(device):
            autocast = torch.get_autocast_dtype(device)
        trained = sum(map(_IS_TRAINED, weights))
        how = (call.model_index, call.module.training, autocast, trained)
        sizes = (*arguments.sizes, *structure.vmapped())
        return Kind(("forward", *how, *arguments.signature), sizes), batch


class Phases:
    """Follows a loop between `open` and `close`, on the thread that opens it; outermost calls of
    models are forward passes. `on` holds what is called at each forward pass, optimiser's step and
    compilation. `done` are the phases that are over."""

    def __init__(
        self,
        models: Modules,
        on: Mapping[str, Callable[[], None]],
        counting: bool,
    ) -> None:
        self._on = on
        self._thread = LoopThread()
        self._passes = Passes()
        self._endings = Endings(models)
        self._switch = Switch(models, counting, CompiledPhases(models))
        self._sums = Sums()
        self._current = _DONE
        self._optimizers: list[torch.optim.Optimizer] = []
        self.done: list[Phase] = []
        self.calls = DescribedCalls(models)
        self.hooks = Hooks(models, self._switch.fail, on["compilation"])

    def open(self) -> None:
        """Begins to listen, and to count, unless what comes before the first forward pass is
        known."""
        self._thread.open()
        self._optimizers = []
        self._structure = Structure(self.calls.models)
        self.done = []
        self._passes.forwards = 0
        self._current = _DONE
        self.listen()

    def close(self) -> None:
        """Stops listening, and removes every hook, also after an error in the loop."""
        try:
            self._end(Ending())
            self._switch.stop()
        finally:
            self.hooks.close()

    def listen(self) -> None:
        """Puts all hooks on, between two steps, and begins a phase."""
        self._thread.move(Event.LISTEN)
        self._passes.listen()
        every = None
        if self._switch.is_asked and not self._switch.compiled.is_whole:
            every = self._structure.called
        # Compiled optimisers keep a guard on hooks. Their steps are needed only without models, as
        # they may then bound the loop's steps.
        is_guarded = self.calls.models and structure.graphs_compiled()
        optimizer = list[Hook]()
        if not is_guarded:
            optimizer = [self._before_optimizer, self._after_optimizer]
        self.hooks.put_on(self.before, self._after, every, optimizer, self._engine())
        self.begin()

    def stop_watching(self, look: Callable[[Call], None] | None) -> bool:
        """Takes all hooks but `look` off between two steps. False if it cannot, as when a graph may
        reach into the next step."""
        is_forward = self._thread.state is LoopState.FORWARD
        waiting = self._passes.pending[:-1] if is_forward else self._passes.pending
        if waiting or self.counting or self.calls.is_nested:
            return False
        if not self._thread.move(Event.REST):
            return False
        self._current = _DONE
        self._structure.take()  # a forward pass that has just begun is part of no later phase
        self.hooks.take_off()
        if look:
            self.hooks.put_on(look)
        return True

    def begin(
        self, kind: Kind = _OUTSIDE, batch: Shape = (), model_index: int | None = None
    ) -> None:
        """Ends the running phase and begins another; `model_index` is that of the model of a
        forward pass."""
        if self._thread.state is LoopState.BACKWARD and kind.signature[0] != "backward":
            self._switch.failure = self.failure or Said("step_ended_in_backward")
            return
        now = state(self._switch.counter)
        self._end(Ending((kind.signature[0], *now)))
        if kind is _OUTSIDE:
            self._passes.runs = 0
        # A number stands for the signature of a kind, which is slow to compare in each look-up.
        name = self._endings.name((*kind.signature, *now))
        entry = Kind((kind.signature[0], name), kind.sizes, kind.shapes)
        began = structure.sequence_number()
        self._current = Phase(entry, entry, batch, began=began, model_index=model_index)
        self._switch.decide(self._current, self._passes, self._optimizers)

    def forget(self) -> None:
        """Makes the running phase one that failed: what it did so far has no cost."""
        if self._current is not _DONE:
            self._current.entry = self._current.kind = _FAILED

    @property
    def costs(self) -> KnownCosts:
        """Costs of the kinds of phases."""
        return self._switch.costs

    @property
    def failure(self) -> Said | None:
        """Reason why counting was given up; None if it was not."""
        return self._switch.failure

    @property
    def counts(self) -> bool:
        """True if FLOPs are counted and counting was not given up."""
        return self._switch.is_asked and not self.failure

    @property
    def counting(self) -> bool:
        """True if the counter is on, so that times do not count."""
        return self._switch.counter is not None

    @property
    def unused(self) -> list[str]:
        """Modules with weights that ran in no counted phase. If there are several models, names
        begin with the model's index."""
        names = [name.replace("_orig_mod.", "") for name in self._switch.unused or ()]
        if len(self.calls.models) == 1:
            names = [name.partition(".")[2] for name in names]
        return outermost(names)

    def cost(self, phases: Sequence[Phase]) -> PhaseCost | None:
        """Cost of phases together; None if one is of a kind that was not counted and follows from
        no others."""
        costs = [
            _NO_COST if phase.entry is _FAILED else self.costs.cost(phase.kind) for phase in phases
        ]
        return self._sums.of(costs)

    def before(self, call: Call) -> None:
        """Begins a forward pass, unless the call is part of another phase."""
        thread = self._thread
        if not thread.is_own_thread():
            if thread.is_foreign_call():
                self._switch.failure = Said("called_in_another_thread")
            return
        # Calls inside compiled code are seen only while it runs uncompiled, under the counter.
        is_forward = thread.enter(is_hidden=thread.depth == 0 and in_compiled_code())
        self.calls.note(call, thread.depth)
        if not is_forward:  # a part of another, or recomputed by the backward pass
            self._structure.note(call.module, call.arguments)
            return
        self._passes.forwards += 1
        self._passes.runs = 0
        try:
            counter = self._switch.counter
            kind, batch = self.calls.begin(call)
            self.begin(kind, batch, call.model_index)
            self._structure.note(call.module, call.arguments)
            self._passes.forward(self._current)
            self._switch.note_call(call, self._current.entry, self._switch.counter is not counter)
        finally:
            self._on["forward"]()

    def _after(self, *_: object) -> None:
        if not self._thread.is_own_thread() or not self._thread.leave():
            return
        self._current.left = structure.sequence_number()
        if self.calls.has_failed():
            self._passes.fail()
            self.forget()

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._thread.is_own_thread():
            self._optimizers = [*self._optimizers, optimizer]

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._thread.is_own_thread():
            if optimizer in self._optimizers:  # those after it failed
                self._optimizers = self._optimizers[: self._optimizers.index(optimizer)]
            self._passes.runs = 0
            self._on["optimizer"]()

    def _engine(self) -> Callable[..., object]:
        run = torch.autograd._engine_run_backward
        begins = self.hooks.guarded(self._backward)
        ended = self.hooks.guarded(self._after_backward)

        def noted(
            outputs: Sequence[torch.Tensor | GradientEdge], *arguments: object, **options: object
        ) -> object:
            counter = self._switch.counter
            is_outermost = self._thread.is_own_thread() and self._thread.move(Event.BACKWARD)
            returned = None
            try:
                if is_outermost:
                    begins(outputs)
                # A counter that begins here has put its own on top, which ends here again.
                has_begun = is_outermost and self._switch.counter not in (None, counter)
                engine = torch.autograd._engine_run_backward if has_begun else run
                returned = engine(outputs, *arguments, **options)
                return returned
            except BaseException as error:
                drop_own_frames(error)
                raise
            finally:
                if is_outermost:
                    self._thread.move(Event.BACKWARD_END)
                    ended(returned)

        skip_frame(noted)
        return noted

    def _backward(self, outputs: object) -> None:
        passes = self._passes
        passed = passes.behind(self._current)
        nodes = max(0, structure.number(outputs) - passed[0].began)
        is_compiled = self._switch.compiled.made(passed, nodes, outputs)
        if is_compiled:
            nodes = 0  # under the counter the same forward pass makes a graph of its own operators
        inside = self._structure.take()
        made = 0
        if not is_compiled:
            made = passes.graph_of(outputs, self._current, nodes, inside)
        self._end(Ending(("backward",), made, inside))
        kind, through = passes.backward(passed, self._endings.name, nodes)
        if is_compiled:
            now = state(self._switch.counter)
            name = self._endings.name((*kind.signature, *now))
            self._switch.compiled.add(("backward", name))
        self.begin(kind)
        self._current.through = through
        if self._current.counted:
            passes.keep_leaves(outputs)

    def _after_backward(self, returned: object) -> None:
        self.begin(self._passes.after_backward(self._endings.name))
        counter = self._switch.counter
        if counter is not None:
            leaves = self._passes.leaves
            gradients = [leaf.grad for leaf in leaves]
            if isinstance(returned, tuple):
                gradients += returned
            counter.follow(gradients, leaves)

    def _end(self, ending: Ending) -> None:
        """Ends the running phase and learns its cost. The counter then starts at zero for the next
        phase."""
        phase = self._current
        self._current = _DONE
        if phase is _DONE:
            return
        self.done.append(phase)
        inside = ending.inside or self._structure.take()
        if phase.entry is not _FAILED and self._switch.is_asked:
            if self._switch.compiled.covers(phase.entry):
                self._endings.ender(phase, ending.ender)
            else:
                phase.kind = self._endings.kind(phase, ending, inside)
            self._switch.learn(phase, self._passes)
        phase.samples = self._endings.samples(phase, inside)
        self._switch.forget()
