"""Which layer does an operator belong to, in the forward pass, in the backward pass, and when recomputed."""

import sys
from bisect import bisect_right
from types import TracebackType
from typing import Any

import torch
from torch.autograd.graph import Node

ROOT = ""


class LayerTracker:
    """Follows a model through its forward pass, and remembers which layer made each node of the autograd graph.

    Autograd numbers its nodes in the order of their making, so the numbers at which layers begin and end say, in the
    backward pass, which layer the gradient being computed belongs to. A module used twice goes by its first name.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._stack = [ROOT]
        self._numbers = [-1]
        self._layers = [ROOT]
        self._handles: list[Any] = []
        self.failed = ROOT
        """Name of the innermost layer that was running when its forward failed."""

    @property
    def current(self) -> str:
        """Name of the innermost layer whose forward is running, as in `model.named_modules()`."""
        return self._stack[-1]

    def of_node(self, node: Node) -> str:
        """Name of the layer that made an autograd node; the root for those that belong to none."""
        number = node._sequence_nr()
        # Accumulating a leaf's gradient has the largest number that there is.
        return ROOT if number >= 2**63 else self._layers[bisect_right(self._numbers, number) - 1]

    def __enter__(self) -> "LayerTracker":
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._entering(name)))
            self._handles.append(module.register_forward_hook(self._leaving(name), always_call=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _entering(self, name: str) -> Any:
        def enter(module: torch.nn.Module, arguments: Any) -> None:
            self._stack.append(name)
            self._mark()

        return enter

    def _leaving(self, name: str) -> Any:
        def leave(module: torch.nn.Module, arguments: Any, output: Any) -> None:
            # Hooks are also called for a forward that failed, the innermost layer's first.
            self.failed = self.failed or (name if sys.exc_info()[1] is not None else ROOT)
            if len(self._stack) > 1:
                self._stack.pop()
            self._mark()

        return leave

    def _mark(self) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._layers.append(self.current)
