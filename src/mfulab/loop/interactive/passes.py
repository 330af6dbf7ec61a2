"""Forward passes, and the backward passes that go through them."""

import itertools
import weakref
from collections.abc import Callable, Mapping

import torch

from mfulab.core.parts import drop_none
from mfulab.loop.interactive import batches, structure
from mfulab.loop.interactive.costs import Kind, Phase, Signature
from mfulab.loop.interactive.structure import Inside

MOST_PENDING = 4096  # a backward pass through more forward passes is of a kind of its own
MOST_RUNS = 8  # up to this many backward passes in a row are distinguished


class Passes:
    """Keeps the forward passes that wait for a backward pass (`pending`), and those that the last
    one went through (`passed`). `runs` counts backward passes in a row, `forwards` all forward
    passes."""

    def __init__(self) -> None:
        self.pending: list[Phase] = []
        self.passed: list[Phase] = []
        self.runs = 0
        self.forwards = 0
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        self._graphs: dict[object, int] = {}  # hashes; each graph is searched once

    def listen(self) -> None:
        """Forgets the passes so far, between two steps."""
        self.runs = 0
        self.pending = []
        self.passed = []

    def forward(self, phase: Phase) -> None:
        """Records a forward pass."""
        if torch.is_grad_enabled():
            self.pending.append(phase)

    def fail(self) -> None:
        """Drops the last forward pass, which ended with an error."""
        if torch.is_grad_enabled():
            self.pending = self.pending[:-1]

    def behind(self, current: Phase) -> list[Phase]:
        """Forward passes that the next backward pass goes through; a second backward pass goes
        through the same ones."""
        if self.pending:
            return self.pending
        if self.passed and self.forwards:
            return self.passed
        return [current]

    def backward(
        self, passed: list[Phase], name: Callable[[Signature], int], nodes: int
    ) -> tuple[Kind, Mapping[int, int | None]]:
        """Returns the kind that a backward pass begins as, and the batches that it is the first to
        go through. `nodes`, the number of nodes in the graph since the first forward pass began,
        distinguishes losses."""
        signature: list[object] = ["backward"]
        sizes: list[int] = []
        shapes = 0
        for kind, group in itertools.groupby(passed, key=lambda phase: phase.kind):
            signature.append(name(kind.signature))
            sizes += [*kind.sizes, len(list(group))]
            shapes = hash((shapes, kind.shapes))
        if len(self.pending) > MOST_PENDING:
            signature.append(object())  # equal to nothing else
        through = batches.of_models(self.pending)
        self.passed = passed
        self.pending = []
        return Kind(tuple(signature), (*sizes, nodes), shapes), through

    def after_backward(self, name: Callable[[Signature], int]) -> Kind:
        """Kind of what follows a backward pass. It may be the next forward pass of a loop that
        calls no model given to the window."""
        self.runs = min(self.runs + 1, MOST_RUNS)
        # Without forward passes it went through a phase like this one, and each name would contain
        # another without end.
        through = list[Signature]()
        if self.forwards:
            through = [phase.entry.signature for phase in self.passed]
        return Kind(("after backward", self.runs, name(tuple(dict.fromkeys(through)))), ())

    def graph_of(self, outputs: object, current: Phase, nodes: int, inside: Inside) -> int:
        """Hash of what was computed outside the models before a backward pass from `outputs`."""
        ended = [*self.pending, current]
        spans = [(phase.began, phase.left) for phase in ended if phase.left is not None]
        seen = current.entry, inside.modules, nodes, len(spans)
        if not inside.modules or seen not in self._graphs:  # without modules, each time
            self._graphs[seen] = structure.graph_hash(outputs, ended[0].began, spans)
        return self._graphs[seen]

    def keep_leaves(self, outputs: object) -> None:
        """Remembers the leaves that a counted backward pass gives gradients, without keeping them
        alive."""
        leaves = drop_none(getattr(node, "variable", None) for node in structure.nodes_of(outputs))
        self._leaves = list(map(weakref.ref, leaves))

    @property
    def leaves(self) -> list[torch.Tensor]:
        """Living leaves of the last counted backward pass."""
        return drop_none(reference() for reference in self._leaves)
