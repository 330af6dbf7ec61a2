"""torch's FlopCounterMode with this project's formulas, noting pass, layer and bytes of each operator."""

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from mfulab.flops.elementwise import other_flops
from mfulab.flops.layers import LayerTracker
from mfulab.flops.operators import FORMULAS, Cost, operator_name
from mfulab.flops.tensors import LiveTensors

Pass = Literal["forward", "backward", "recomputed"]


@dataclass(frozen=True)
class Key:
    """What calls are summed over."""

    layer: str
    operator: str
    direction: Pass


@dataclass
class Totals:
    """Sums over calls. FLOPs as in Cost; `other_flops` are those that do not count towards MFU.

    `elements` were read and written by operators that count towards MFU, `other_elements` by all others.
    """

    calls: int = 0
    flops: int = 0
    causal_flops: int = 0
    executed_flops: int = 0
    other_flops: int = 0
    elements: int = 0
    other_elements: int = 0

    def add(self, other: "Totals") -> None:
        """Adds another's sums to these."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Operations:
    """All that was counted: sums by layer, operator and pass, and the operators that no formula knows."""

    totals: dict[Key, Totals] = field(default_factory=dict)
    uncounted: Counter[str] = field(default_factory=Counter)

    def sum(self, direction: Pass | None = None, layer: str | None = None, operator: str | None = None) -> Totals:
        """Sums over all that match; `layer` includes the layers inside it."""
        total = Totals()
        for key, totals in self._matching(direction, layer, operator):
            del key
            total.add(totals)
        return total

    def _matching(
        self, direction: Pass | None, layer: str | None, operator: str | None
    ) -> Iterator[tuple[Key, Totals]]:
        for key, totals in self.totals.items():
            inside = not layer or key.layer == layer or key.layer.startswith(layer + ".")
            if inside and direction in (None, key.direction) and operator in (None, key.operator):
                yield key, totals


class OperatorCounter(FlopCounterMode):
    """Counts whatever runs inside it; `operations` and `live` hold the result.

    torch's counter takes operators apart until it meets one that it knows how to run; here each such operator gets this
    project's formula, else torch's, else that of elementwise arithmetic, else it is noted as uncounted.
    """

    def __init__(self, layers: LayerTracker) -> None:
        super().__init__(display=False)
        self.operations = Operations()
        self.live = LiveTensors()
        self._layers = layers
        # torch's own tracker of modules would hook every one of them, and warn in the backward pass.
        self.mod_tracker = nullcontext()  # type: ignore[assignment]

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        name = operator_name(func_packet)
        read = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
        written = [tensor for tensor in tree_leaves(out) if isinstance(tensor, torch.Tensor)]
        self.live.note(read, written)
        call = Totals(calls=1)
        cost = self._cost(func_packet, name, out, args, kwargs)
        if cost is not None:
            call.flops, call.causal_flops, call.executed_flops = cost.flops, cost.causal_flops, cost.executed_flops
            call.elements = elements(read) + elements(written)
        else:
            other = other_flops(func_packet, read + written, args, kwargs)
            if other is None:
                self.operations.uncounted[name] += 1
            call.other_flops = other or 0
            # A view moves nothing.
            call.other_elements = 0 if other == 0 and _shares_memory(read, written) else elements(read + written)
        self.operations.totals.setdefault(self._key(name), Totals()).add(call)
        return out

    def _cost(self, packet: Any, name: str, out: Any, args: Any, kwargs: Any) -> Cost | None:
        if name in FORMULAS:
            cost = FORMULAS[name](*args, out=out, **kwargs)
        elif packet in self.flop_registry:
            cost = self.flop_registry[packet](*args, out_val=out, **kwargs)
        else:
            return None
        return cost if isinstance(cost, Cost) else Cost(int(cost), int(cost), int(cost))

    def _key(self, name: str) -> Key:
        node = torch._C._current_autograd_node()
        if node is None:
            return Key(self._layers.current, name, "forward")
        # The backward pass itself builds no graph and enters no layer; what it runs anew for a checkpoint does.
        if torch.is_grad_enabled() or self._layers.current:
            return Key(self._layers.current, name, "recomputed")
        return Key(self._layers.of_node(node), name, "backward")


def elements(tensors: list[torch.Tensor]) -> int:
    """Elements that lie in memory: a dimension of stride 0 repeats the same ones."""
    return sum(tensor.numel() if tensor.layout != torch.strided else _stored(tensor) for tensor in tensors)


def _stored(tensor: torch.Tensor) -> int:
    count = 1 if tensor.numel() else 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count


def _shares_memory(read: list[torch.Tensor], written: list[torch.Tensor]) -> bool:
    storages = {tensor.untyped_storage()._cdata for tensor in read}
    return bool(written) and all(tensor.untyped_storage()._cdata in storages for tensor in written)
