"""Costs of phases, and descriptions of what a phase was called with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten

from mfulab.core.parts import drop_none
from mfulab.flops.counter import Operations
from mfulab.flops.useful import RealTokens, useful_flops
from mfulab.loop.interactive.structure import Shape, sizes_of

MOST_SUMS = 4096

Format = tuple[torch.dtype, bool]  # dtype that multiplied, and True for convolutions
Flops = Mapping[Format, int]
# Format of a matmul, convolution or attention, its FLOPs and its bytes.
Product = tuple[Format, int, int]


Signature = tuple[Any, ...]


class Kind(NamedTuple):
    """Description of a phase; phases of equal kinds cost the same. `signature` describes types and
    structure, `sizes` are the integers in it (dimensions, counts). `shapes` is a hash of the shapes
    that inner modules were given."""

    signature: Signature
    sizes: Shape
    shapes: int = 0


@dataclass(frozen=True)
class PhaseCost:
    """FLOPs of a phase by format, needed and executed, bytes that matmuls moved, and numbers of
    equal `products`. `unshown` FLOPs ran outside modules without a node of autograd: nothing shows
    whether the next phase has them too. `useful` FLOPs served real tokens; None if the model's
    arguments do not show which tokens are real."""

    formats: Flops = field(default_factory=dict)
    executed_formats: Flops = field(default_factory=dict)
    moved_bytes: int = 0
    uncounted: frozenset[str] = frozenset()
    useful: float | None = None
    products: Mapping[Product, int] = field(default_factory=dict)
    unshown: int = 0

    @property
    def model(self) -> int:
        """FLOPs that the model needs."""
        return sum(self.formats.values())

    @property
    def executed(self) -> int:
        """FLOPs that were executed."""
        return sum(self.executed_formats.values())

    def same_flops(self, other: "PhaseCost | None") -> bool:
        """True if another cost has the same FLOPs; which of them are useful depends on the data
        alone."""
        return other is not None and (self.formats, self.executed_formats) == (
            other.formats,
            other.executed_formats,
        )


@dataclass(slots=True)
class Phase:
    """One phase: its kind when it began (`entry`), its kind when it was over, and its samples.
    `began` and `left` are autograd's sequence numbers when it began and when its model's forward
    pass ended. `model_index` is that of a forward pass's model. `through` is the batch of each
    model that a backward pass is the first to go through."""

    entry: Kind
    kind: Kind
    batch: Shape = ()
    counted: bool = False
    began: int = 0
    left: int | None = None
    samples: int | None = None
    model_index: int | None = None
    through: Mapping[int, int | None] | None = None


def cost_of_all(counts: Sequence[tuple[PhaseCost, int]]) -> PhaseCost:
    """Sums costs, each times its number of phases. If some know which of their FLOPs are useful,
    all FLOPs of the others count as useful."""
    needed = Counter[Format]()
    executed = Counter[Format]()
    products = Counter[Product]()
    for cost, count in counts:
        products.update({key: count * calls for key, calls in cost.products.items()})
        needed.update({key: count * flops for key, flops in cost.formats.items()})
        executed.update({key: count * flops for key, flops in cost.executed_formats.items()})
    moved = sum(count * cost.moved_bytes for cost, count in counts)
    useful: float | None = None
    if any(cost.useful is not None for cost, _ in counts):
        useful = 0
        for cost, count in counts:
            useful += count * (cost.model if cost.useful is None else cost.useful)
    uncounted = frozenset[str]().union(*(cost.uncounted for cost, _ in counts))
    unshown = sum(count * cost.unshown for cost, count in counts)
    return PhaseCost(needed, executed, moved, uncounted, useful, products, unshown)


def cost_of(operations: Operations, real: RealTokens | None = None) -> PhaseCost:
    """Cost of counted operations without the optimiser's. `real` tokens, if known, decide which
    FLOPs are useful."""
    needed = operations.by_format()
    executed = operations.by_format(executed=True)
    moved = 0
    products = Counter[Product]()
    for key, totals in operations.totals.items():
        if key.direction not in ("forward", "backward") or key.dtype is None:
            continue
        moved_bytes = key.dtype.itemsize * totals.elements
        moved += moved_bytes
        if totals.calls > 0:
            number_format = (key.dtype, "conv" in key.operator)
            flops = round(totals.flops / totals.calls)
            size = round(moved_bytes / totals.calls)
            products[number_format, flops, size] += totals.calls
    return PhaseCost(
        needed,
        executed,
        moved,
        frozenset(operations.uncounted),
        useful_flops(operations, real),
        products,
        operations.unshown,
    )


def describe(value: object) -> tuple[Kind, Shape]:
    """Describes arguments without their data. Also returns the dimensions of the first tensor, of
    which the first counts samples; empty if there is no tensor."""
    described = _Description()
    described.add(value)
    return Kind(tuple(described.signature), tuple(described.sizes)), described.batch or ()


class _Description:
    """Description of a value and of all that it holds. `batch` are the dimensions of the first
    tensor, None before it."""

    def __init__(self) -> None:
        self.signature: list[object] = []
        self.sizes: list[int] = []
        self.batch: Shape | None = None

    def add(self, value: Any) -> None:
        """Adds a value; pytrees would take several times as long."""
        if isinstance(value, torch.Tensor):
            self._add_tensor(value)
        elif isinstance(value, bool | str | None):
            self.signature.append(value)
        elif isinstance(value, int):
            self.signature.append(int)
            self.sizes.append(value)
        elif isinstance(value, tuple | list):
            self.signature.append((type(value), len(value)))
            if type(value) is PackedSequence and self.batch is None:
                self.batch = (int(value.batch_sizes[0]),)
            for item in value:
                self.add(item)
        elif isinstance(value, Mapping) or hasattr(value, "keys"):  # a tokenizer's batch is none
            names = tuple(value.keys())
            self.signature.append((dict, names))
            for name in names:
                self.add(value[name])
        else:
            self._add_other(value)

    def _add_tensor(self, value: torch.Tensor) -> None:
        shape = sizes_of(value)
        form = (value.dtype, len(shape), value.requires_grad, type(value), value.device)
        self.signature.append(form)
        self.sizes.extend(shape)
        if self.batch is not None:
            return
        if mapped := _mapped(value):
            # Values that are mapped one by one are samples; with more dimensions it is unknown
            # which of them counts samples.
            self.batch = (mapped,) if len(shape) < 2 or shape[0] == 1 else ()
        elif shape:
            self.batch = tuple(shape)

    def _add_other(self, value: object) -> None:
        leaves, structure = tree_flatten(value)
        if len(leaves) != 1 or leaves[0] is not value:
            self.signature.append(structure)
            for leaf in leaves:
                self.add(leaf)
            return
        self.signature.append(type(value))
        if hasattr(value, "get_seq_length"):  # a key-value cache: its length decides the cost
            self.sizes.append(int(value.get_seq_length()))


def _mapped(tensor: torch.Tensor) -> int:
    """Number of tensors that `torch.vmap` presents as this one; 0 outside of it."""
    functorch = torch._C._functorch
    count = 0
    while functorch.is_functorch_wrapped_tensor(tensor):
        inner = functorch.get_unwrapped(tensor)
        if functorch.is_batchedtensor(tensor):
            count = max(1, count) * inner.shape[functorch.maybe_get_bdim(tensor)]
        tensor = inner
    return count


class Sums:
    """Caches sums of costs. Keeps the summed costs alive, since the id of a deleted object can be
    reused."""

    def __init__(self) -> None:
        self._sums: dict[Shape, tuple[Sequence[PhaseCost | None], PhaseCost | None]] = {}

    def of(self, costs: Sequence[PhaseCost | None]) -> PhaseCost | None:
        """Sum of the costs; None if one is unknown."""
        key = tuple(map(id, costs))
        if key not in self._sums:
            if len(self._sums) > MOST_SUMS:
                self._sums.clear()
            known = drop_none(costs)
            total = None
            if len(known) == len(costs):
                total = cost_of_all([(cost, 1) for cost in known])
            self._sums[key] = costs, total
        return self._sums[key][1]
