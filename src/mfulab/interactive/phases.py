"""Phases of a loop: one begins at each forward and each backward pass, and at each step.

Every phase is described cheaply as it begins. The first of its kind runs under a counter, which sees each operator that
really runs, outside models too; all others are timed undisturbed and cost what the first of their kind cost.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import _disable_current_modes

from mfulab.flops.counter import Operations
from mfulab.flops.layers import LayerTracker
from mfulab.flops.useful import RealTokens, real_tokens
from mfulab.interactive.counting import LoopCounter, states_kept_apart
from mfulab.interactive.kinds import Cost, Kind, cost_of, derive, describe

# More kinds than this are not counted: each costs a slow phase.
MOST_KINDS = 64
# Forward passes that one backward pass can go through and still be told apart.
MOST_PENDING = 8
_OUTSIDE, _FAILED = Kind(("outside",), ()), Kind(("failed",), ())


@dataclass
class Phase:
    """One phase: what kind it is of, whether it ran under the counter, and the samples that went forward in it."""

    kind: Kind
    counted: bool = False
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
        on_forward: Callable[[], None] = lambda: None,
        on_optimizer: Callable[[], None] = lambda: None,
        counting: bool = True,
    ) -> None:
        self._models, self._on_forward, self._on_optimizer, self._counting = models, on_forward, on_optimizer, counting
        self._trainable = [list(model.parameters()) for model in models]
        self._compiled = any(_is_compiled(module) for model in models for module in model.modules())
        self._of_compiled: set[tuple[Any, ...]] = set()
        self._of_operators: set[tuple[tuple[Any, ...], int]] = set()
        self.costs: dict[Kind, Cost] = {_FAILED: Cost()}
        """Cost of each kind, counted or derived from counted ones."""
        self.done: list[Phase] = []
        self.failure = ""
        """Reason why counting was given up; empty if it was not."""
        self.forwards = 0
        self.derived = 0
        self._counter: LoopCounter | None = None
        self._real: dict[Kind, RealTokens] = {}
        self._current = Phase(_OUTSIDE)

    def open(self) -> None:
        """Begins to listen, and to count unless what lies before the first forward pass is known."""
        self._thread, self._depth, self._running = threading.get_ident(), 0, False
        self._pending: list[Kind] = []
        self._passed: tuple[Kind, ...] = ()
        self._again: set[Kind] = set()
        self._handled: BaseException | None = None
        self.done, self.forwards, self._runs = [], 0, 0
        with ExitStack() as undo:
            for place, model in enumerate(self._models):
                if getattr(model, "_compiled_call_impl", None) is not None:
                    continue  # compiled in place: its hooks are compiled with it
                before = self._guarded(lambda *given, place=place: self._before(place, *given))
                handle = model.register_forward_pre_hook(before, with_kwargs=True)
                undo.callback(handle.remove)
                handle = model.register_forward_hook(self._guarded(self._after), always_call=True)
                undo.callback(handle.remove)
            handle = optimizer_hooks.register_optimizer_step_post_hook(self._guarded(self._after_optimizer))
            undo.callback(handle.remove)
            undo.enter_context(patch.object(torch.autograd, "_engine_run_backward", self._engine()))
            undo.enter_context(states_kept_apart(lambda: self._counter))
            self._open = undo.pop_all()
        self._began = _sequence_number()
        self._current = Phase(_OUTSIDE)
        self._decide()

    def close(self) -> None:
        """Stops listening; every hook is removed, also after an error in the loop."""
        try:
            self._end()
            self._stop_counting()
        finally:
            self._open.close()

    def begin(self, kind: Kind = _OUTSIDE, samples: int | None = None) -> None:
        """Begins a phase, the one before being over."""
        self._end()
        if kind.words[0] != "backward":
            self._began = _sequence_number()
        if kind == _OUTSIDE:
            self._runs = 0
        self._current = Phase(kind, samples=samples)
        self._decide()

    def forget(self) -> None:
        """Makes the running phase one that failed: what it did so far is no cost of its kind, and of no use."""
        self._current.kind = _FAILED

    @property
    def kinds(self) -> int:
        """Number of kinds that were counted."""
        return len(self.costs) - 1 - self.derived

    @property
    def counting(self) -> bool:
        """Says whether the counter is on, so that time is no measure now."""
        return self._counter is not None

    def cost(self, phases: Sequence[Phase]) -> Cost | None:
        """Cost of phases together; None if one is of a kind that was neither counted nor follows from others."""
        total = Cost()
        for phase in phases:
            if phase.kind not in self.costs and not self._derive(phase.kind):
                return None
            total += self.costs[phase.kind]
        return total

    # ------------------------------------------------------------------------------------------------------ noticing

    def _before(self, place: int, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: Any) -> None:
        if not self._own_thread():
            return
        self._depth += 1
        if self._depth > 1 or self._running:  # a part of another, or recomputed by the backward pass
            return
        self.forwards += 1
        self._handled = sys.exc_info()[1]  # the loop may be in an except clause of its own
        try:
            given, samples = describe((arguments, keywords))
            kind = self._forward_kind(place, module, given)
            if torch.is_grad_enabled():
                self._pending = [*self._pending[1 - MOST_PENDING :], kind]
            self.begin(kind, samples)
            if self._counter is not None:
                self._counter.layers.begin(module)
                if (real := _real_tokens(arguments, keywords)) is not None:
                    self._real[kind] = real
        finally:
            self._on_forward()

    def _forward_kind(self, place: int, module: torch.nn.Module, given: Kind) -> Kind:
        device = next((each.device.type for each in self._trainable[place]), "cpu")
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        trained = sum(each.requires_grad for each in self._trainable[place])
        state = module.training, torch.is_grad_enabled(), autocast, trained
        return Kind(("forward", place, *state, *given.words), given.sizes)

    def _after(self, *_: Any) -> None:
        if not self._own_thread():
            return
        self._depth = max(0, self._depth - 1)
        # Hooks are also called for a forward pass that failed.
        if sys.exc_info()[1] not in (None, self._handled) and not self._depth and not self._running:
            self._pending = self._pending[:-1] if torch.is_grad_enabled() else self._pending
            self.forget()

    def _after_optimizer(self, *_: Any) -> None:
        if self._own_thread():
            self._runs = 0
            self._on_optimizer()

    def _engine(self) -> Callable[..., Any]:
        run = torch.autograd._engine_run_backward

        def noted(outputs: Any, *rest: Any, **options: Any) -> Any:
            outermost = self._own_thread() and not self._running and not self._depth
            if not outermost:
                return run(outputs, *rest, **options)
            self._guarded(self._backward)(outputs)
            self._running = True
            try:
                return run(outputs, *rest, **options)
            finally:
                self._running = False
                if not self.forwards:  # what follows may be the next forward pass, of which no module tells
                    self._runs += 1
                    self._guarded(self.begin)(Kind(("after backward", self._runs), ()))

        return noted

    def _backward(self, outputs: Any) -> None:
        self._passed = tuple(self._pending) or self._passed
        self._pending = []
        words = ("backward", *(kind.words for kind in self._passed))
        # How many nodes the graph has since the forward pass began tells losses apart.
        nodes = _number(outputs) - self._began
        if self._of_compiled_code(words, nodes, outputs):
            nodes = 0  # under the counter the same forward pass makes a graph of its own operators
        self.begin(Kind(words, (*(size for kind in self._passed for size in kind.sizes), nodes)))

    def _of_compiled_code(self, words: tuple[Any, ...], nodes: int, outputs: Any) -> bool:
        """Says whether the forward passes of a graph were compiled; a graph is looked through once."""
        if self._compiled or words in self._of_compiled:
            return True
        if not _has_compiled() or (words, nodes) in self._of_operators:
            return False
        if _holds_compiled(outputs):
            self._of_compiled.add(words)
            return True
        self._of_operators.add((words, nodes))
        return False

    def _own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    # ------------------------------------------------------------------------------------------------------ counting

    def _decide(self) -> None:
        kind = self._current.kind
        wanted = self._counting and not self.failure and (kind not in self.costs or kind in self._again)
        compiled = self._compiled or kind.words in self._of_compiled
        if wanted and self._counter is None and kind.words[0] == "backward" and compiled:
            # Its forward pass ran compiled, and so would this one, in which a counter sees little.
            self._again.update(self._passed or [phase.kind for phase in self.done[-1:]])
            wanted = False
        if wanted and kind not in self.costs:
            wanted = len(self.costs) < MOST_KINDS and not self._derive(kind)
        if not wanted:
            self._stop_counting()
        elif self._counter is None:
            self._start_counting()
        self._current.counted = self._counter is not None

    def _derive(self, kind: Kind) -> bool:
        cost = derive(self.costs, kind)
        if cost is not None:
            self.costs[kind] = cost
            self.derived += 1
        return cost is not None

    def _end(self) -> None:
        """Notes the running phase as done, once."""
        if self._current is not _DONE:
            self.done.append(self._current)
            if self._counter is not None and self._current.counted:
                if self._counter.error:
                    self.failure = self._counter.error
                elif self._current.kind != _FAILED:
                    kind = self._current.kind
                    of_forward = self._passed[-1] if kind.words[0] == "backward" and self._passed else kind
                    cost = cost_of(self._counter.operations, self._real.get(of_forward))
                    self.costs[self._current.kind] = cost
                    self._again.discard(self._current.kind)
                self._counter.operations = Operations()
            self._current = _DONE

    def _start_counting(self) -> None:
        models = torch.nn.ModuleDict({str(place): model for place, model in enumerate(self._models)})
        counter = LoopCounter(LayerTracker(models))
        counter.__enter__()
        self._counter = counter

    def _stop_counting(self) -> None:
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.__exit__(None, None, None)

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The hook, after whose own errors the loop goes on, uncounted."""

        def guarded(*given: Any) -> None:
            if torch.compiler.is_compiling():
                return
            try:
                hook(*given)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
                self._stop_counting()

        return guarded


_DONE = Phase(_OUTSIDE)


def _real_tokens(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> RealTokens | None:
    """Real tokens of a counted call; looking at the batch is no part of what is counted, nor may it fail."""
    try:
        with _disable_current_modes():
            return real_tokens(arguments, keywords)
    except Exception:
        return None


def _sequence_number() -> int:
    return torch._C._autograd._get_sequence_nr()


def _number(outputs: Any) -> int:
    """Number of the newest node that a backward pass starts from; -1 for a leaf and for what has none."""
    numbers = []
    for output in outputs if isinstance(outputs, Sequence) else [outputs]:
        node = getattr(output, "grad_fn", None)
        number = node._sequence_nr() if node is not None else -1
        numbers.append(number if number < 2**63 else -1)
    return max(numbers, default=-1)


def _holds_compiled(outputs: Any) -> bool:
    """Says whether compiled code made a node of the graph of a backward pass."""
    given = outputs if isinstance(outputs, Sequence) else [outputs]
    waiting = [node for output in given if (node := getattr(output, "grad_fn", None)) is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node.name().startswith("CompiledFunction"):
            return True
        following = {other for other, _ in node.next_functions if other is not None} - seen
        seen |= following
        waiting += following
    return False


def _has_compiled() -> bool:
    """Says whether torch.compile has compiled anything in this process; asking imports nothing."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"].get("unique_graphs"))


def _is_compiled(module: torch.nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
