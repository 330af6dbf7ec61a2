"""Recognises phases of compiled code, in which a counter sees little."""

from collections.abc import Sequence
from itertools import chain

import torch

from mfulab.loop.interactive import structure
from mfulab.loop.interactive.costs import Kind, Phase


class CompiledPhases:
    """Recognises phases of compiled code: all of them if a model is compiled (`is_whole`), else by
    the graphs of backward passes."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        modules = chain.from_iterable(model.modules() for model in models)
        self.is_whole = any(map(structure.is_compiled, modules))
        self._words: set[tuple[object, ...]] = set()
        self._holds: dict[object, bool] = {}  # by graph, each of which is searched once

    def covers(self, entry: Kind) -> bool:
        """True if phases that begin as `entry` run compiled code."""
        return self.is_whole or entry.words in self._words

    def add(self, words: tuple[object, ...]) -> None:
        """Records that phases with these words run compiled code."""
        self._words.add(words)

    def made(self, passed: Sequence[Phase], nodes: int, outputs: object) -> bool:
        """True if compiled code made a part of the graph that a backward pass from `outputs` goes
        through."""
        words = {phase.entry.words for phase in passed}
        if self.is_whole or words <= self._words:
            return True
        # A counted forward pass makes another graph, which may have equally many nodes.
        graph = frozenset((phase.entry.words, phase.counted) for phase in passed), nodes
        if graph not in self._holds:
            self._holds[graph] = structure.holds_compiled(outputs)
        if self._holds[graph]:
            self._words |= words
        return self._holds[graph]
