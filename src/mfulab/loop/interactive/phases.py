"""Phases of a loop: one begins at each forward and each backward pass, after each of these, and at each step. Every
phase is described cheaply as it begins, and by what ran in it as it ends. The first of its kind runs under a counter,
which sees each operator that really runs, outside models too; all others are timed undisturbed and cost what the first
of their kind cost. One that began like a counted one and ran otherwise has no cost, and the next is counted."""

import itertools
import operator
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mfulab.flops.counter import Operations
from mfulab.flops.layers import LayerTracker, outermost
from mfulab.flops.useful import RealTokens
from mfulab.loop.interactive import structure
from mfulab.loop.interactive.costs import Cost, Kind, KnownCosts, Phase, cost_of_all, describe
from mfulab.loop.interactive.counting import LoopCounter, in_compiled_code, state
from mfulab.loop.interactive.hooks import Call, Hooks, skip_frame
from mfulab.loop.interactive.structure import Inside, Structure

MOST_PENDING = 4096  # forward passes that one backward pass can go through and still be told apart
MOST_OWED = 8  # phases that are counted so that one inside compiled code is
HOOK_S = 3e-6  # that a hook itself costs a call
MOST_RUNS = 8  # backward passes in a row after which what follows is told apart
_IS_TRAINED = operator.attrgetter("requires_grad")
_OUTSIDE, _FAILED = Kind(("outside",), ()), Kind(("failed",), ())
_NO_COST, _DONE = Cost(), Phase(_OUTSIDE, _OUTSIDE)


class Phases:
    """Follows a loop between `open` and `close`, from the thread that opens it; outermost calls are forward passes. It
    calls what `on` holds at each forward pass, optimiser's step and compilation."""

    def __init__(self, models: Sequence[torch.nn.Module], on: Mapping[str, Callable[[], None]], counting: bool) -> None:
        self._models, self._on_forward, self._on_optimizer = models, on["forward"], on["optimizer"]
        self._counting = counting
        self._trainable = [list(model.parameters()) for model in models]
        self._compiled = any(structure.is_compiled(module) for model in models for module in model.modules())
        self._of_compiled: set[tuple[Any, ...]] = set()
        self._graphs: dict[Any, int] = {}  # hashes of graphs of backward passes, each looked through once
        self._holds_compiled: dict[Any, bool] = {}  # whether compiled code made a part of such a graph
        self._time_first: set[tuple[Any, ...]] = set()
        self._names: dict[tuple[Any, ...], int] = {}
        self._enders: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.costs = KnownCosts()
        self.done: list[Phase] = []
        self.failure = ""  # why counting was given up
        self.forwards = 0
        self._unused: set[str] | None = None
        self._counter: LoopCounter | None = None
        self._sums: dict[tuple[int, ...], tuple[list[Cost | None], Cost | None]] = {}
        self._real: dict[Kind, RealTokens] = {}
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        self._current, self._owed = _DONE, 0
        self.hooks = Hooks(models, self._failed, on["compilation"])
        self.calls: list[Kind] = []  # what forward passes were called with; the caller clears it
        self.look_s = 0.0  # host seconds that describing the last forward pass took, inside a hook of its own
        self.nested = False  # whether a call of a model was part of another

    def open(self) -> None:
        """Begins to listen, and to count unless what lies before the first forward pass is known."""
        self._thread = threading.get_ident()
        self._handled: BaseException | None = None
        self._optimizers: list[torch.optim.Optimizer] = []
        self._structure = Structure(self._models)
        self.done, self.forwards, self._current = [], 0, _DONE
        self.listen()

    def close(self) -> None:
        """Stops listening; every hook is removed, also after an error in the loop."""
        try:
            self._end()
            self._stop_counting()
        finally:
            self.hooks.close()

    def listen(self) -> None:
        """Puts all hooks on, between two steps, and begins a phase."""
        self._depth, self._running, self._hidden, self._runs = 0, False, False, 0
        self._pending: list[Phase] = []
        self._passed: list[Phase] = []
        every = self._structure.called if self._counting and not self._compiled else None
        # Compiled optimisers keep a guard on hooks; only without models may their steps bound those of the loop.
        spared = self._models and structure.graphs_compiled()
        optimizer = () if spared else (self._before_optimizer, self._after_optimizer)
        self.hooks.put_on(self.before, self._after, every, optimizer, self._engine())
        self.begin()

    def rest(self, look: Callable[[Call], None] | None) -> bool:
        """Takes hooks off between two steps, but `look`; says whether it did: a graph may reach into the next step."""
        waits = self._pending[:-1] if self._depth else self._pending
        if self._running or self._counter is not None or waits or self.nested:
            return False
        self._current = _DONE
        self.hooks.take_off()
        if look:
            self.hooks.put_on(look)
        return True

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
    def counts(self) -> bool:
        """Says whether FLOPs are counted, and were not given up."""
        return self._counting and not self.failure

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
        costs = [_NO_COST if phase.entry is _FAILED else self.costs.cost(phase.kind) for phase in phases]
        key = tuple(map(id, costs))
        if key not in self._sums:
            if len(self._sums) > MOST_PENDING:
                self._sums.clear()
            counts = [(cost, 1) for cost in costs if cost is not None]
            self._sums[key] = costs, cost_of_all(counts) if len(counts) == len(costs) else None
        return self._sums[key][1]

    def describe(self, call: Call) -> tuple[Kind, tuple[int, ...]]:
        """Gives what a forward pass begins as, and its batch."""
        given, batch = describe((call.arguments, call.keywords))
        weights = self._trainable[call.place]
        device = next((weight.device.type for weight in weights), "cpu")
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        words = ("forward", call.place, call.module.training, autocast, sum(map(_IS_TRAINED, weights)), *given.words)
        return Kind(words, (*given.sizes, *structure.vmapped())), batch

    def before(self, call: Call) -> None:
        """Begins a forward pass, unless it is a part of another phase."""
        if not self._own_thread():
            if torch._C._current_autograd_node() is None:
                self.failure = "a model was called in a thread other than the window's"
            return
        self._depth += 1
        self.nested = self.nested or self._depth > 1
        if self._depth == 1:  # compiled code shows its calls only while it runs uncompiled, under the counter
            self._hidden = in_compiled_code()
        if self._depth > 1 or self._running or self._hidden:  # a part of another, or recomputed by the backward pass
            self._structure.note(call.module, call.arguments)
            return
        self.forwards, self._runs = self.forwards + 1, 0
        self._handled = sys.exc_info()[1]  # the loop may be in an except clause of its own
        try:
            before = self._counter
            began = time.perf_counter()
            kind, batch = self.describe(call)
            self.look_s = time.perf_counter() - began + HOOK_S
            self.calls.append(kind)
            self.begin(kind, batch)
            self._structure.note(call.module, call.arguments)
            if torch.is_grad_enabled():
                self._pending.append(self._current)
            if self._counter not in (None, before):
                self._counter.layers.begin(call.module)
            real = structure.real_tokens_of(call.arguments, call.keywords) if self._counter is not None else None
            if real is not None:
                self._real[self._current.entry] = real
        finally:
            self._on_forward()

    def _after(self, *_: Any) -> None:
        if not self._own_thread():
            return
        self._depth = max(0, self._depth - 1)
        if self._hidden:
            return
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
        begins, ended = self.hooks.guarded(self._backward), self.hooks.guarded(self._after_backward)

        def noted(outputs: Any, *arguments: Any, **options: Any) -> Any:
            if not self._own_thread() or self._running or self._depth:  # not the outermost
                return run(outputs, *arguments, **options)
            before, returned = self._counter, None
            begins(outputs)
            # A counter that begins here has put its own on top, which ends here again.
            engine = run if self._counter in (None, before) else torch.autograd._engine_run_backward
            self._running = True
            try:
                returned = engine(outputs, *arguments, **options)
                return returned
            finally:
                self._running = False
                ended(returned)

        skip_frame(noted)
        return noted

    def _backward(self, outputs: Any) -> None:
        # A second backward pass goes through the same forward passes.
        passed = self._pending or (self._passed if self.forwards else []) or [self._current]
        first = passed[0].began
        nodes = max(0, structure.number(outputs) - first)
        if compiled := self._of_compiled_code(passed, nodes, outputs):
            nodes = 0  # under the counter the same forward pass makes a graph of its own operators
        inside, made = self._structure.take(), 0
        if not compiled:
            ended = [*self._pending, self._current]
            spans = [(phase.began, phase.left) for phase in ended if phase.left is not None]
            seen = self._current.entry, inside.modules, nodes, len(spans)
            if not inside.modules or seen not in self._graphs:  # where no module tells, each time
                self._graphs[seen] = structure.graph_hash(outputs, ended[0].began, spans)
            made = self._graphs[seen]
        self._end(("backward",), made, inside)
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

    def _after_backward(self, returned: Any) -> None:
        # What follows may be the next forward pass, of which no model tells.
        self._runs = min(self._runs + 1, MOST_RUNS)
        # Without forward passes it went through a phase like this one: a name would be of names without end.
        through = tuple(dict.fromkeys(phase.entry.words for phase in self._passed if self.forwards))
        self.begin(Kind(("after backward", self._runs, self._name(through)), ()))
        if self._counter is not None:
            leaves = [leaf for reference in self._leaves if (leaf := reference()) is not None]
            gradients = [*(leaf.grad for leaf in leaves), *(returned if isinstance(returned, tuple) else ())]
            self._counter.follow(gradients, leaves)

    def _of_compiled_code(self, passed: Sequence[Phase], nodes: int, outputs: Any) -> bool:
        words = {phase.entry.words for phase in passed}
        if self._compiled or words <= self._of_compiled:
            return True
        # A counted forward pass makes a graph of its own operators, which may have as many nodes.
        graph = frozenset((phase.entry.words, phase.counted) for phase in passed), nodes
        if graph not in self._holds_compiled:
            self._holds_compiled[graph] = structure.holds_compiled(outputs)
        if self._holds_compiled[graph]:
            self._of_compiled |= words
        return self._holds_compiled[graph]

    def _name(self, words: tuple[Any, ...]) -> int:
        return self._names.setdefault(words, len(self._names))

    def _own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def _is_of_compiled(self, entry: Kind) -> bool:
        return self._compiled or entry.words in self._of_compiled

    def _decide(self) -> None:
        phase, starts = self._current, self._counter is None
        wanted = self._counting and not self.failure and (self.costs.wants(phase.entry) or self._owed > 0)
        if wanted and starts and phase.entry.words[0] == "backward" and self._is_of_compiled(phase.entry):
            # Its forward pass ran compiled, and so would this one, in which a counter sees little.
            for passed in self._passed:
                self.costs.doubt(passed.entry, passed.entry)
            wanted = False
        self._owed = max(0, self._owed - 1)
        stops = self._counter is not None and not (wanted and self._counter.sees_all)
        if (stops or (wanted and starts)) and in_compiled_code():
            # Neither can happen here: it waits for a phase that begins elsewhere, and the count covers those between.
            self._owed = 0 if stops else MOST_OWED
            wanted = stops
        elif stops:
            self._stop_counting()
        if wanted and self._counter is None:
            models = torch.nn.ModuleDict({str(place): model for place, model in enumerate(self._models)})
            counter = LoopCounter(LayerTracker(models))
            counter.__enter__()
            for optimizer in self._optimizers:
                counter.layers.begin(optimizer)
            self._counter = counter
        phase.counted = wanted
        self._compiled_before = structure.graphs_compiled()

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
            elif self._compiled_before != structure.graphs_compiled():
                pass  # what compiled ran otherwise than the next of its kind will
            elif counter is not None and counter.sees_all:
                of_forward = self._passed[-1].entry if entry.words[0] == "backward" else entry
                self.costs.note(entry, phase.kind, counter.operations, self._real.get(of_forward))
            elif not self.costs.has(phase.kind):
                self.costs.doubt(entry, phase.kind)
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
            if (unused := counter.layers.unused) is not None:
                self._unused = unused if self._unused is None else self._unused & unused

    def _failed(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        if not in_compiled_code():
            self._stop_counting()
