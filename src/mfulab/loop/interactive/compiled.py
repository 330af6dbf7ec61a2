"""Phases of compiled code: a counter sees little in them."""

from collections.abc import Sequence

import torch

from mfulab.loop.interactive import structure
from mfulab.loop.interactive.costs import Kind, Phase


class CompiledPhases:
    """Knows phases of compiled code, `is_whole` if a model is compiled, else by the graphs of
    backward passes."""

    def __init__(self, models: Sequence[torch.nn.Module]) -> None:
        self.is_whole = any(
            structure.is_compiled(module) for model in models for module in model.modules()
        )
        self._words: set[tuple[object, ...]] = set()
        self._holds: dict[object, bool] = {}  # by graph; each is looked through once

    def covers(self, entry: Kind) -> bool:
        """True if a phase that begins so is of compiled code."""
        return self.is_whole or entry.words in self._words

    def add(self, words: tuple[object, ...]) -> None:
        """Notes words of a phase of compiled code."""
        self._words.add(words)

    def made(self, passed: Sequence[Phase], nodes: int, outputs: object) -> bool:
        """True if compiled code made a part of what a backward pass from `outputs` goes through."""
        words = {phase.entry.words for phase in passed}
        if self.is_whole or words <= self._words:
            return True
        # A counted forward pass makes a graph of its own operators, which may have as many nodes.
        graph = frozenset((phase.entry.words, phase.counted) for phase in passed), nodes
        if graph not in self._holds:
            self._holds[graph] = structure.holds_compiled(outputs)
        if self._holds[graph]:
            self._words |= words
        return self._holds[graph]
