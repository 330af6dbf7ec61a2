"""Forward passes, and the backward pass that goes through them."""

import itertools
import weakref
from collections.abc import Callable, Mapping

import torch

from mfulab.loop.interactive import batches, structure
from mfulab.loop.interactive.costs import Kind, Phase
from mfulab.loop.interactive.structure import Inside

MOST_PENDING = 4096  # forward passes that one backward pass can go through and still be told apart
MOST_RUNS = 8  # backward passes in a row after which what follows is told apart


class Passes:
    """`pending` forward passes wait for a backward pass, `passed` are those that the last one went
    through. `runs` counts backward passes in a row, `forwards` all forward passes."""

    def __init__(self) -> None:
        self.pending: list[Phase] = []
        self.passed: list[Phase] = []
        self.runs = 0
        self.forwards = 0
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        self._graphs: dict[object, int] = {}  # hashes, each graph looked through once

    def listen(self) -> None:
        """Begins anew, between two steps."""
        self.runs = 0
        self.pending = []
        self.passed = []

    def forward(self, phase: Phase) -> None:
        """Notes a forward pass."""
        if torch.is_grad_enabled():
            self.pending.append(phase)

    def fail(self) -> None:
        """Forgets the last forward pass, which ended by an error."""
        if torch.is_grad_enabled():
            self.pending = self.pending[:-1]

    def behind(self, current: Phase) -> list[Phase]:
        """Gives what the next backward pass goes through; a second one goes through the same forward
        passes."""
        return self.pending or (self.passed if self.forwards else []) or [current]

    def backward(
        self, passed: list[Phase], name: Callable[[tuple[object, ...]], int], nodes: int
    ) -> tuple[Kind, Mapping[int, int | None]]:
        """Gives what a backward pass begins as, and the batches it is the first to go through.
        `nodes` of the graph, since the first forward pass began, tell losses apart."""
        words: list[object] = ["backward"]
        sizes: list[int] = []
        shapes = 0
        for kind, group in itertools.groupby(passed, key=lambda phase: phase.kind):
            words.append(name(kind.words))
            sizes += [*kind.sizes, len(list(group))]
            shapes = hash((shapes, kind.shapes))
        if len(self.pending) > MOST_PENDING:
            words.append(object())  # equal to none
        through = batches.of_models(self.pending)
        self.passed = passed
        self.pending = []
        return Kind(tuple(words), (*sizes, nodes), shapes), through

    def after_backward(self, name: Callable[[tuple[object, ...]], int]) -> Kind:
        """Gives what follows a backward pass: it may be the next forward pass, of which no model
        tells."""
        self.runs = min(self.runs + 1, MOST_RUNS)
        # Without forward passes it went through a phase like this one: a name would be of names
        # without end.
        through = []
        for phase in self.passed:
            if self.forwards:
                through.append(phase.entry.words)
        return Kind(("after backward", self.runs, name(tuple(dict.fromkeys(through)))), ())

    def graph_of(self, outputs: object, current: Phase, nodes: int, inside: Inside) -> int:
        """Hash of what was made outside the models before a backward pass from `outputs`."""
        ended = [*self.pending, current]
        spans = []
        for phase in ended:
            if phase.left is not None:
                spans.append((phase.began, phase.left))
        seen = current.entry, inside.modules, nodes, len(spans)
        if not inside.modules or seen not in self._graphs:  # where no module tells, each time
            self._graphs[seen] = structure.graph_hash(outputs, ended[0].began, spans)
        return self._graphs[seen]

    def keep_leaves(self, outputs: object) -> None:
        """Keeps the leaves that a counted backward pass gives gradients."""
        leaves = (getattr(node, "variable", None) for node in structure.nodes_of(outputs))
        self._leaves = [weakref.ref(leaf) for leaf in leaves if leaf is not None]

    @property
    def leaves(self) -> list[torch.Tensor]:
        """Leaves of the last counted backward pass that live."""
        return [leaf for reference in self._leaves if (leaf := reference()) is not None]
