"""Costs of kinds of phases: what a phase was called with, which kinds were counted, and which
kinds' costs follow from these."""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten

from mfulab.core.parts import drop_none
from mfulab.core.said import Said
from mfulab.flops.counter import Operations
from mfulab.flops.useful import RealTokens, useful_flops
from mfulab.loop.interactive.structure import sizes_of

# This many kinds that differ only in inner shapes, and cost the same, show the cost of all others
# like them.
ENOUGH_ALIKE = 4
# No more phases than these are counted: each is slow.
MOST_COUNTED = 512
# How often phases are counted in vain for a missing kind: this often in a row, and as often again
# where it is expected.
MOST_TRIES = 16
MOST_SUMS = 4096
# The phases of a kind that are counted again, to check that they cost the same.
CHECKED = frozenset(64 * 8**power for power in range(8))

Format = tuple[torch.dtype, bool]  # dtype that multiplied, and True for convolutions
Flops = Mapping[Format, int]
# Format of a matmul, convolution or attention, its FLOPs and its bytes.
Product = tuple[Format, int, int]


class Kind(NamedTuple):
    """Description of a phase; phases of equal kinds cost the same. `signature` describes types and
    structure, `sizes` are the integers in it (dimensions, counts). `shapes` is a hash of the shapes
    that inner modules were given."""

    signature: tuple[Any, ...]
    sizes: tuple[int, ...]
    shapes: int = 0


@dataclass(frozen=True)
class Cost:
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

    def same_flops(self, other: "Cost | None") -> bool:
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
    batch: tuple[int, ...] = ()
    counted: bool = False
    began: int = 0
    left: int | None = None
    samples: int | None = None
    model_index: int | None = None
    through: Mapping[int, int | None] | None = None


def cost_of_all(counts: Sequence[tuple[Cost, int]]) -> Cost:
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
    return Cost(needed, executed, moved, uncounted, useful, products, unshown)


def cost_of(operations: Operations, real: RealTokens | None = None) -> Cost:
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
    return Cost(
        needed,
        executed,
        moved,
        frozenset(operations.uncounted),
        useful_flops(operations, real),
        products,
        operations.unshown,
    )


def describe(value: object) -> tuple[Kind, tuple[int, ...]]:
    """Describes arguments without their data. Also returns the dimensions of the first tensor, of
    which the first counts samples; empty if there is no tensor."""
    signature = list[Any]()
    sizes = list[int]()
    batch = list[tuple[int, ...]]()
    _walk(value, signature, sizes, batch)
    return Kind(tuple(signature), tuple(sizes)), batch[0] if batch else ()


def _walk(
    value: Any, signature: list[object], sizes: list[int], batch: list[tuple[int, ...]]
) -> None:
    """Adds the description of a value and of all that it holds; pytrees would take several times as
    long."""
    if isinstance(value, torch.Tensor):
        _note_tensor(value, signature, sizes, batch)
    elif isinstance(value, bool | str | None):
        signature.append(value)
    elif isinstance(value, int):
        signature.append(int)
        sizes.append(value)
    elif isinstance(value, tuple | list):
        signature.append((type(value), len(value)))
        if type(value) is PackedSequence and not batch:
            batch.append((int(value.batch_sizes[0]),))
        for item in value:
            _walk(item, signature, sizes, batch)
    elif isinstance(value, Mapping) or hasattr(value, "keys"):  # a tokenizer's batch is no mapping
        names = tuple(value.keys())
        signature.append((dict, names))
        for name in names:
            _walk(value[name], signature, sizes, batch)
    else:
        _note_other(value, signature, sizes, batch)


def _note_tensor(
    value: torch.Tensor, signature: list[object], sizes: list[int], batch: list[tuple[int, ...]]
) -> None:
    shape = sizes_of(value)
    signature.append((value.dtype, len(shape), value.requires_grad, type(value), value.device))
    sizes.extend(shape)
    if batch:
        return
    if mapped := _mapped(value):
        # Values that are mapped one by one are samples; with more dimensions it is unknown which of
        # them counts samples.
        batch.append((mapped,) if len(shape) < 2 or shape[0] == 1 else ())
    elif shape:
        batch.append(tuple(shape))


def _note_other(
    value: object, signature: list[object], sizes: list[int], batch: list[tuple[int, ...]]
) -> None:
    leaves, structure = tree_flatten(value)
    if len(leaves) != 1 or leaves[0] is not value:
        signature.append(structure)
        for leaf in leaves:
            _walk(leaf, signature, sizes, batch)
        return
    signature.append(type(value))
    if hasattr(value, "get_seq_length"):  # a key-value cache: its length decides the cost
        sizes.append(int(value.get_seq_length()))


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
        self._sums: dict[tuple[int, ...], tuple[Sequence[Cost | None], Cost | None]] = {}

    def of(self, costs: Sequence[Cost | None]) -> Cost | None:
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


class Filling:
    """Useful FLOPs of equal calls in a row that fill a static cache. They are counted at some
    positions of a run, and interpolated linearly in between. Positions count from 1."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.useful: dict[int, float] = {}
        self._mean = (0, 0.0)  # number of calls, and their mean

    def wants(self, position: int) -> bool:
        """True if a call at this position is to be counted: once at each power of two."""
        is_power_of_two = position & (position - 1) == 0
        return bool(self.useful) and is_power_of_two and position not in self.useful

    @property
    def mean(self) -> float:
        """Mean useful FLOPs over all calls so far."""
        count = self.calls.total()
        if self._mean[0] != count:
            useful = sum(calls * self._at(position) for position, calls in self.calls.items())
            self._mean = count, useful / count
        return self._mean[1]

    def _at(self, position: int) -> float:
        """Useful FLOPs at a position, interpolated between counted ones."""
        counted = sorted(self.useful)
        if len(counted) == 1:
            return self.useful[counted[0]]
        after = min(max(bisect.bisect_left(counted, position), 1), len(counted) - 1)
        first, last = counted[after - 1 : after + 1]
        low, high = self.useful[first], self.useful[last]
        return low + (high - low) * (position - first) / (last - first)


class KnownCosts:
    """Costs of kinds, both by a phase's `entry` and by its final `kind`. `differing` is set once
    two counts of one kind differ, so that neither is its cost."""

    def __init__(self) -> None:
        self._costs: dict[Kind, Cost | None] = {}
        self._entries: dict[Kind, Cost | None] = {}
        self._begun: Counter[Kind] = Counter()
        self._missing: dict[Kind, set[Kind]] = {}
        self._tries: Counter[Kind] = Counter()
        self._due: set[Kind] = set()
        # The missing kind that is expected for an entry and its nth phase; and the n at which each
        # missing kind turned up last.
        self._expected: dict[tuple[Kind, int], Kind] = {}
        self._turned_up: dict[Kind, int] = {}
        self._of_sizes: defaultdict[object, list[Kind]] = defaultdict(list)
        self._derived: set[Kind] = set()
        self._counts = 0
        self._forward: Kind | None = None
        self._position = 0  # among equal forward passes in a row
        self._fillings: defaultdict[Kind, Filling] = defaultdict(Filling)
        self._filling_of: dict[Kind, Filling] = {}
        self.differing: Said | None = None

    @property
    def numbers(self) -> tuple[int, int]:
        """Number of kinds that were counted, and of kinds that cost the same as others like
        them."""
        return len(self._costs), len(self._derived)

    def cost(self, kind: Kind) -> Cost | None:
        """Cost of a kind; None if it was not counted and follows from no others."""
        if kind in self._costs:
            cost = self._costs[kind]
        elif cost := self._alike(self._costs, kind):
            self._derived.add(kind)
        if cost is not None and kind in self._filling_of:
            return replace(cost, useful=min(self._filling_of[kind].mean, cost.model))
        return cost

    def has(self, kind: Kind) -> bool:
        """True if a kind was counted, or its cost follows from others."""
        return kind in self._costs or self._alike(self._costs, kind) is not None

    def wants(self, entry: Kind) -> bool:
        """Records a phase that begins as `entry`; True if it is to be counted."""
        self._begun[entry] += 1
        filling = self._fillings[entry]
        if entry.signature[0] == "forward":
            self._position = self._position + 1 if entry == self._forward else 1
            self._forward = entry
            filling.calls[self._position] += 1
        if self._counts >= MOST_COUNTED:
            return False
        is_due = self._begun[entry] in CHECKED or entry in self._due
        self._due.discard(entry)
        expected = self._expected.pop((entry, self._begun[entry]), None)
        is_expected = expected is not None and expected not in self._costs
        is_due = is_due or filling.wants(self._position)
        if is_due or is_expected or entry in self._missing:
            return True
        return entry not in self._entries and self._alike(self._entries, entry) is None

    def passed(self, entries: Iterable[Kind], steps: int) -> None:
        """Records the phases of steps that were not watched. If one of them was due for a recount,
        the next of its kind is counted again."""
        for entry in entries:
            before = self._begun[entry]
            self._begun[entry] += steps
            if any(before < due <= before + steps for due in CHECKED):
                self._due.add(entry)

    def doubt(self, entry: Kind, kind: Kind) -> None:
        """Records a phase that began as a known kind and turned out to be an unknown one. The next
        phases of that entry are counted, and so is the one at the distance between the last two of
        the unknown kind. Does nothing once no more phases are counted."""
        if self._counts >= MOST_COUNTED:
            return
        if self._tries[kind] < MOST_TRIES:
            self._missing.setdefault(entry, set()).add(kind)
        if kind != entry and self._tries[kind] < 2 * MOST_TRIES:
            now = self._begun[entry]
            distance = now - self._turned_up.get(kind, 0)
            self._expected[entry, now + distance] = kind
            self._turned_up[kind] = now
            self._tries[kind] += 1

    def note(
        self, entry: Kind, kind: Kind, operations: Operations, real: RealTokens | None
    ) -> None:
        """Records the count of a phase."""
        cost = cost_of(operations, real)
        for costs, key in ((self._costs, kind), (self._entries, entry)):
            if key not in costs:
                self._of_sizes[id(costs), key.signature, key.sizes].append(key)
            if not cost.same_flops(costs.setdefault(key, cost)):
                costs[key] = None
                if key is kind:
                    self.differing = Said("phases_differ", {"phase": kind.signature[0]})
        if real is None and cost.useful is not None and entry == self._forward:
            filling = self._filling_of[kind] = self._fillings[entry]
            filling.useful[self._position] = cost.useful
        self._counts += 1
        missing = self._missing.pop(entry, set()) - {kind}
        self._tries.update(missing)
        missing = {other for other in missing if self._tries[other] < MOST_TRIES}
        if missing:
            self._missing[entry] = missing

    def _alike(self, costs: Mapping[Kind, Cost | None], kind: Kind) -> Cost | None:
        """Cost of kinds that differ only in inner shapes (experts' shares of the tokens); None
        unless several were counted and all cost the same."""
        kinds = self._of_sizes.get((id(costs), kind.signature, kind.sizes), ())
        if len(kinds) < ENOUGH_ALIKE:
            return None
        alike = [costs[other] for other in kinds]
        first = alike[0]
        if first is not None and all(map(first.same_flops, alike)):
            return first
        return None
