"""Recognises phases of compiled code, in which a counter sees little."""

from collections.abc import Sequence
from itertools import chain

from mfulab.loop.interactive import structure
from mfulab.loop.interactive.costs import Kind, Phase, Signature
from mfulab.loop.interactive.structure import Modules


class CompiledPhases:
    """Recognises phases of compiled code: all of them if a model is compiled (`is_whole`), else by
    the graphs of backward passes."""

    def __init__(self, models: Modules) -> None:
        modules = chain.from_iterable(model.modules() for model in models)
        self.is_whole = any(map(structure.is_compiled, modules))
        self._signatures: set[Signature] = set()
        self._holds: dict[object, bool] = {}  # by graph, each of which is searched once

    def covers(self, entry: Kind) -> bool:
        """True if phases that begin as `entry` run compiled code."""
        return self.is_whole or entry.signature in self._signatures

    def add(self, signature: Signature) -> None:
        """Records that phases with this signature run compiled code."""
        self._signatures.add(signature)

    def made(self, passed: Sequence[Phase], nodes: int, outputs: object) -> bool:
        """True if compiled code made a part of the graph that a backward pass from `outputs` goes
        through."""
        signature = {phase.entry.signature for phase in passed}
        if self.is_whole or signature <= self._signatures:
            return True
        # A counted forward pass makes another graph, which may have equally many nodes.
        graph = frozenset((phase.entry.signature, phase.counted) for phase in passed), nodes
        if graph not in self._holds:
            self._holds[graph] = structure.holds_compiled(outputs)
        if self._holds[graph]:
            self._signatures |= signature
        return self._holds[graph]
