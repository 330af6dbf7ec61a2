"""Phases of a loop: one begins at each forward and each backward pass, after each of these, and at each step.

Every phase is described cheaply as it begins, and by what ran in it as it ends. The first of its kind runs under a
counter, which sees each operator that really runs, outside models too; all others are timed undisturbed and cost what
the first of their kind cost. One that began like a counted one and ran otherwise has no cost, and the next is counted.
"""

import itertools
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch.optim import optimizer as optimizer_hooks

from mfulab.flops.counter import Operations
from mfulab.flops.layers import LayerTracker, outermost
from mfulab.flops.useful import RealTokens
from mfulab.loop.interactive import structure
from mfulab.loop.interactive.costs import Cost, Kind, KnownCosts, describe
from mfulab.loop.interactive.counting import LoopCounter, state, states_kept_apart
from mfulab.loop.interactive.structure import Inside, Structure

MOST_PENDING = 4096  # forward passes that one backward pass can go through and still be told apart
MOST_RUNS = 8  # backward passes in a row after which what follows is told apart
_IS_TRAINED = operator.attrgetter("requires_grad")
_OUTSIDE, _FAILED = Kind(("outside",), ()), Kind(("failed",), ())


@dataclass(slots=True)
class Phase:
    """One phase: the kind that it began as, what it turned out to be, and the samples that went forward in it.

    `began` is autograd's number at its beginning, `left` as its model's forward ended; a `tentative` one awaits a count
    of a longer one.
    """

    entry: Kind
    kind: Kind
    batch: tuple[int, ...] = ()
    counted: bool = False
    tentative: bool = False
    began: int = 0
    left: int | None = None
    samples: int | None = None


class Phases:
    """Follows a loop between `open` and `close`, from the thread that opens it.

    Args:
        models: the modules whose outermost calls are forward passes; may be empty.
        on_forward: called before each forward pass that is part of no other.
        on_optimizer: called after each optimiser's step.
        counting: whether to count at all.
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        on_forward: Callable[[], None],
        on_optimizer: Callable[[], None],
        counting: bool,
    ) -> None:
        self._models, self._on_forward, self._on_optimizer, self._counting = models, on_forward, on_optimizer, counting
        self._trainable = [list(model.parameters()) for model in models]
        self._compiled = any(structure.is_compiled(module) for model in models for module in model.modules())
        self._of_compiled: set[tuple[Any, ...]] = set()
        self._of_operators: set[tuple[Any, ...]] = set()
        self._time_first: set[tuple[Any, ...]] = set()
        self._names: dict[tuple[Any, ...], int] = {}
        self._enders: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._graphs_seen: dict[tuple[Any, ...], int] = {}
        self.known = KnownCosts()
        self.done: list[Phase] = []
        self.failure = ""
        """Reason why counting was given up; empty if it was not."""
        self.forwards = 0
        self._unused: set[str] | None = None
        self._counter: LoopCounter | None = None
        self._real: dict[Kind, RealTokens] = {}
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        self._current = _DONE

    def open(self) -> None:
        """Begins to listen, and to count unless what lies before the first forward pass is known."""
        self._thread, self._depth, self._running = threading.get_ident(), 0, False
        self._pending: list[Phase] = []
        self._passed: list[Phase] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._handled: BaseException | None = None
        self._structure = Structure(self._models)
        self.done, self.forwards, self._runs = [], 0, 0
        with ExitStack() as undo:
            for place, model in enumerate(self._models):
                if isinstance(model, torch.jit.ScriptModule) or getattr(model, "_compiled_call_impl", None) is not None:
                    continue  # a script takes no hooks; compiled in place, they are compiled with it
                before = self._guarded(lambda *given, place=place: self._before(place, *given))
                undo.callback(model.register_forward_pre_hook(before, with_kwargs=True).remove)
                undo.callback(model.register_forward_hook(self._guarded(self._after), always_call=True).remove)
            before, after = self._guarded(self._before_optimizer), self._guarded(self._after_optimizer)
            undo.callback(optimizer_hooks.register_optimizer_step_pre_hook(before).remove)
            undo.callback(optimizer_hooks.register_optimizer_step_post_hook(after).remove)
            undo.enter_context(patch.object(torch.autograd, "_engine_run_backward", self._engine()))
            undo.enter_context(states_kept_apart(lambda: self._counter))
            if self._counting:
                undo.enter_context(self._structure.noted())
            self._open = undo.pop_all()
        self.begin()

    def close(self) -> None:
        """Stops listening; every hook is removed, also after an error in the loop."""
        try:
            self._end()
            self._stop_counting()
        finally:
            self._open.close()

    def begin(self, kind: Kind = _OUTSIDE, batch: tuple[int, ...] = ()) -> None:
        """Begins a phase, the one before being over."""
        if self._running:
            self.failure = self.failure or "a step ended inside a backward pass"
            return
        now = state(self._counter)
        self._end((kind.words[0], *now))
        if kind is _OUTSIDE:
            self._runs = 0
        # A number stands for all words of a kind, which are many to compare in each of the looks at what is known.
        entry = Kind((kind.words[0], self._name((*kind.words, *now))), kind.sizes, kind.shapes)
        self._current = Phase(entry, entry, batch, began=structure.sequence_number())
        self._decide()

    def forget(self) -> None:
        """Makes the running phase one that failed: what it did so far is no cost of its kind, and of no use."""
        if self._current is not _DONE:
            self._current.entry = self._current.kind = _FAILED

    @property
    def counting(self) -> bool:
        """True if the counter is on, so that time is no measure now."""
        return self._counter is not None

    @property
    def unused(self) -> list[str]:
        """Modules with weights that ran in no counted phase; of several models behind the model's place."""
        names = (name.replace("_orig_mod.", "") for name in self._unused or ())
        return outermost(names if len(self._models) > 1 else (name.partition(".")[2] for name in names))

    def cost(self, phases: Sequence[Phase]) -> Cost | None:
        """Cost of phases together; None if one is of a kind that was neither counted nor follows from others."""
        total = Cost()
        for phase in phases:
            cost = Cost() if phase.entry is _FAILED else self.known.cost(phase.kind)
            if cost is None:
                return None
            total += cost
        return total

    def _before(self, place: int, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: Any) -> None:
        if not self._own_thread():
            if torch._C._current_autograd_node() is None:
                self.failure = "a model was called in a thread other than the window's"
            return
        self._depth += 1
        if self._depth > 1 or self._running:  # a part of another, or recomputed by the backward pass
            self._structure.note(module, arguments)
            return
        self.forwards, self._runs = self.forwards + 1, 0
        self._handled = sys.exc_info()[1]  # the loop may be in an except clause of its own
        try:
            given, batch = describe((arguments, keywords))
            before = self._counter
            device = next((each.device.type for each in self._trainable[place]), "cpu")
            autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            trained = sum(map(_IS_TRAINED, self._trainable[place]))
            words = ("forward", place, module.training, autocast, trained, *given.words)
            self.begin(Kind(words, (*given.sizes, *structure.vmapped())), batch)
            self._structure.note(module, arguments)
            if torch.is_grad_enabled():
                self._pending.append(self._current)
            if self._counter not in (None, before):
                self._counter.layers.begin(module)
            if self._counter is not None and (real := structure.real_tokens_of(arguments, keywords)) is not None:
                self._real[self._current.entry] = real
        finally:
            self._on_forward()

    def _after(self, *_: Any) -> None:
        if not self._own_thread():
            return
        self._depth = max(0, self._depth - 1)
        if not self._depth and not self._running:
            self._current.left = structure.sequence_number()
        # Hooks are also called for a forward pass that failed.
        if sys.exc_info()[1] not in (None, self._handled) and not self._depth and not self._running:
            self._pending = self._pending[:-1] if torch.is_grad_enabled() else self._pending
            self.forget()

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._own_thread():
            self._optimizers = [*self._optimizers, optimizer]

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._own_thread():
            if optimizer in self._optimizers:  # those above it failed
                self._optimizers = self._optimizers[: self._optimizers.index(optimizer)]
            self._runs = 0
            self._on_optimizer()

    def _engine(self) -> Callable[..., Any]:
        run = torch.autograd._engine_run_backward

        def noted(outputs: Any, *rest: Any, **options: Any) -> Any:
            if not self._own_thread() or self._running or self._depth:  # not the outermost
                return run(outputs, *rest, **options)
            before, found = self._counter, None
            self._guarded(self._backward)(outputs)
            # A counter that begins here has put its own on top, which ends here again.
            engine = run if self._counter in (None, before) else torch.autograd._engine_run_backward
            self._running = True
            try:
                found = engine(outputs, *rest, **options)
                return found
            finally:
                self._running = False
                self._guarded(self._after_backward)(found)

        return noted

    def _backward(self, outputs: Any) -> None:
        # A second backward pass goes through the same forward passes.
        passed = self._pending or (self._passed if self.forwards else []) or [self._current]
        first = passed[0].began
        nodes = max(0, structure.number(outputs) - first)
        if compiled := self._of_compiled_code(passed, nodes, outputs):
            nodes = 0  # under the counter the same forward pass makes a graph of its own operators
        inside = self._structure.take()
        self._end(("backward",), 0 if compiled else self._made(nodes, outputs, inside), inside)
        words: list[Any] = ["backward"]
        sizes: list[int] = []
        shapes = 0
        for kind, group in itertools.groupby(passed, key=lambda phase: phase.kind):
            words.append(self._name(kind.words))
            sizes += [*kind.sizes, len(list(group))]
            shapes = hash((shapes, kind.shapes))
        if len(self._pending) > MOST_PENDING:
            words.append(object())  # equal to none
        self._passed, self._pending = passed, []
        if compiled:
            self._of_compiled.add(("backward", self._name((*words, *state(self._counter)))))
        # How many nodes the graph has since the first forward pass began tells losses apart.
        self.begin(Kind(tuple(words), (*sizes, nodes), shapes))
        if self._current.counted:
            leaves = (getattr(node, "variable", None) for node in structure.nodes_of(outputs))
            self._leaves = [weakref.ref(leaf) for leaf in leaves if leaf is not None]

    def _made(self, nodes: int, outputs: Any, inside: Inside) -> int:
        """The part of the graph that costs FLOPs and that no model's forward made, in short.

        It is looked through once for as many nodes made by as many modules, and each time where no module tells.
        """
        ended = [*self._pending, self._current]
        seen = self._current.entry, inside.modules, nodes, len(ended)
        if not (inside.modules and seen in self._graphs_seen):
            spans = [(phase.began, phase.left) for phase in ended if phase.left is not None]
            self._graphs_seen[seen] = structure.graph_hash(outputs, ended[0].began, spans)
        return self._graphs_seen[seen]

    def _after_backward(self, found: Any) -> None:
        # What follows may be the next forward pass, of which no model tells.
        self._runs = min(self._runs + 1, MOST_RUNS)
        # Without forward passes it went through a phase like this one: a name would be of names without end.
        through = tuple(dict.fromkeys(phase.entry.words for phase in self._passed if self.forwards))
        self.begin(Kind(("after backward", self._runs, self._name(through)), ()))
        if self._counter is not None:
            leaves = [leaf for reference in self._leaves if (leaf := reference()) is not None]
            gradients = [*(leaf.grad for leaf in leaves), *(found if isinstance(found, tuple) else ())]
            self._counter.follow(gradients, leaves)

    def _of_compiled_code(self, passed: Sequence[Phase], nodes: int, outputs: Any) -> bool:
        """True if the forward passes of a graph were compiled; a graph is looked through once."""
        words = {phase.entry.words for phase in passed}
        if self._compiled or words <= self._of_compiled:
            return True
        graph = (frozenset(words), nodes)
        if not structure.graphs_compiled() or graph in self._of_operators:
            return False
        if structure.holds_compiled(outputs):
            self._of_compiled |= words
            return True
        self._of_operators.add(graph)
        return False

    def _name(self, words: tuple[Any, ...]) -> int:
        return self._names.setdefault(words, len(self._names))

    def _own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def _is_of_compiled(self, entry: Kind) -> bool:
        return self._compiled or entry.words in self._of_compiled

    def _decide(self) -> None:
        phase = self._current
        wanted, starts = self._counting and not self.failure, self._counter is None
        if wanted:
            wanted, phase.tentative = self.known.wants(phase.entry)
        if wanted and starts and phase.entry.words[0] == "backward" and self._is_of_compiled(phase.entry):
            # Its forward pass ran compiled, and so would this one, in which a counter sees little.
            for passed in self._passed:
                self.known.doubt(passed.entry, passed.entry)
            wanted = False
        if self._counter is not None and not (wanted and self._counter.sees_all):
            self._stop_counting()
        if wanted and self._counter is None:
            models = torch.nn.ModuleDict({str(place): model for place, model in enumerate(self._models)})
            counter = LoopCounter(LayerTracker(models))
            counter.__enter__()
            for optimizer in self._optimizers:
                counter.layers.begin(optimizer)
            self._counter = counter
        phase.counted = wanted
        self._graphs = structure.graphs_compiled()

    def _end(self, ender: tuple[Any, ...] = (), graph: int | None = None, inside: Inside | None = None) -> None:
        # `ender` is what begins instead, and the state then; empty at the end of all. A count up to there is none of a
        # phase that another follows; a phase that was not counted is taken to end as the last of its kind did.
        # `graph` is a hash of what was made outside the model; without it the number of nodes shows it.
        phase, self._current = self._current, _DONE
        if phase is _DONE:
            return
        self.done.append(phase)
        inside = inside or self._structure.take()
        if phase.entry is not _FAILED and self._counting:
            entry = phase.entry
            # What ran outside modules shows by its place alone without gradients, by the graph before a backward pass.
            if entry.words[0] == "forward" and torch.is_grad_enabled() and ender[:1] in (("forward",), ("backward",)):
                ender = ("graph",)
            if ender:
                self._enders[entry.words] = ender
            else:
                ender = ("end",) if phase.counted else self._enders.get(entry.words, ("end",))
            if not self._is_of_compiled(entry):
                end = structure.sequence_number() if graph is None else phase.began
                nodes = (end if phase.left is None else phase.left) - phase.began if torch.is_grad_enabled() else 0
                shapes = hash((entry.shapes, inside.shapes)) if inside.shapes else entry.shapes
                words, sizes = (*entry.words, ender, inside.modules, graph or 0), (*entry.sizes, nodes, inside.elements)
                phase.kind = Kind(words, sizes, shapes)
            counter = self._counter if phase.counted else None
            if counter is not None and counter.error:
                self.failure = counter.error
            elif counter is not None and counter.sees_all and self._graphs == structure.graphs_compiled():
                of_forward = self._passed[-1].entry if entry.words[0] == "backward" else entry
                self.known.note(entry, phase.kind, counter.operations, self._real.get(of_forward))
            elif not phase.tentative and not self.known.has(phase.kind):
                self.known.doubt(entry, phase.kind)
        if phase.batch:
            if inside.leading and inside.leading == phase.batch[:2]:
                self._time_first.add(phase.entry.words)
            phase.samples = phase.batch[phase.entry.words in self._time_first]
        if self._counter is not None:
            self._counter.operations = Operations()
            self._counter.follow((), ())

    def _stop_counting(self) -> None:
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.__exit__(None, None, None)
            unused = counter.layers.unused
            if unused is not None:
                self._unused = unused if self._unused is None else self._unused & unused

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The hook, after whose own errors the loop goes on, uncounted; the loop's function modes do not see it."""

        def safe(*given: Any) -> None:
            if torch.compiler.is_compiling():
                return
            try:
                with torch._C.DisableTorchFunction():
                    hook(*given)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
                self._stop_counting()

        return safe


_DONE = Phase(_OUTSIDE, _OUTSIDE)
