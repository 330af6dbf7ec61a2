"""Decides which kind a phase turned out to be: by what began next, the modules that ran, and the
graph they made."""

from dataclasses import dataclass

import torch

from mfulab.loop.interactive import structure
from mfulab.loop.interactive.costs import Kind, Phase, Signature
from mfulab.loop.interactive.structure import Inside, Modules


@dataclass(frozen=True)
class Ending:
    """End of a phase. `ender` is what began next, and the thread's state then; empty when measuring
    ends. `graph` is a hash of what was computed outside the model before a backward pass; None if
    the number of nodes shows it."""

    ender: Signature = ()
    graph: int | None = None
    inside: Inside | None = None


class Endings:
    """Numbers the signatures of kinds, which are slow to compare, and keeps what ended the last
    phase of each kind. When measuring ends, a phase that was not counted is taken to end as the
    last of its kind did."""

    def __init__(self, models: Modules = ()) -> None:
        self._may_be_time_first = any(map(_holds_time_first, models))
        self._met: set[Signature] = set()
        self._names: dict[Signature, int] = {}
        self._enders: dict[Signature, Signature] = {}
        self._time_first: set[Signature] = set()

    def name(self, signature: Signature) -> int:
        """Number that stands for the signature of a kind."""
        return self._names.setdefault(signature, len(self._names))

    def kind(self, phase: Phase, ending: Ending, inside: Inside) -> Kind:
        """Kind that a phase turned out to be."""
        entry = phase.entry
        graph = ending.graph
        nodes = 0
        if torch.is_grad_enabled():
            end = phase.left
            if end is None and graph is None:
                end = structure.sequence_number()
            if end is not None:
                nodes = end - phase.began
        shapes = entry.shapes
        if inside.shapes:
            shapes = hash((shapes, inside.shapes))
        ender = self.ender(phase, ending.ender)
        signature = (*entry.signature, ender, inside.modules, graph or 0)
        return Kind(signature, (*entry.sizes, nodes, inside.elements), shapes)

    def ender(self, phase: Phase, ender: Signature) -> Signature:
        """Returns what ended a phase, as far as it affects the phase's cost."""
        signature = phase.entry.signature
        # With gradients, the graph before a backward pass shows what ran outside modules; without
        # them only what follows does.
        is_followed = ender[:1] in (("forward",), ("backward",))
        if signature[0] == "forward" and is_followed and torch.is_grad_enabled():
            ender = ("graph",)
        if ender:
            self._enders[signature] = ender
            return ender
        if phase.counted:
            return ("end",)
        return self._enders.get(signature, ("end",))

    def samples(self, phase: Phase, inside: Inside) -> int | None:
        """Samples of a phase: the first dimension of its batch, or the second if time comes first.
        None if a layer of the models takes time first but none was seen in such phases: compiled
        code shows no layers."""
        if not phase.batch:
            return phase.samples
        signature = phase.entry.signature
        if inside.leading is not None:
            self._met.add(signature)
        if inside.leading and inside.leading == phase.batch[:2]:
            self._time_first.add(signature)
        if self._may_be_time_first and signature not in self._met:
            return None
        return phase.batch[signature in self._time_first]


def _holds_time_first(model: torch.nn.Module) -> bool:
    """True for a model with a layer whose `batch_first` is False."""
    return any(vars(module).get("batch_first") is False for module in model.modules())
