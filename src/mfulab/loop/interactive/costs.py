"""Costs of kinds of phases: what a phase was called with, which kinds were counted, and which
follow from these."""

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten

from mfulab.core.said import Said
from mfulab.flops.counter import Operations
from mfulab.flops.useful import RealTokens, useful_flops
from mfulab.loop.interactive.structure import sizes_of

# So many kinds that differ in the shapes inside alone, and cost the same, show the cost of all
# others like them.
ENOUGH_ALIKE = 4
# More phases than these are not counted: each is a slow one.
MOST_COUNTED = 512
# How often a phase is counted in vain until what is missing turns up: so often in a row, and as
# often where it is expected.
MOST_TRIES = 16
MOST_SUMS = 4096
# A kind is counted again at these of its phases: they must cost the same.
CHECKED = frozenset(64 * 8**power for power in range(8))

Format = tuple[torch.dtype, bool]  # the format that multiplied, and if convolutions did
Flops = Mapping[Format, int]
Product = tuple[
    Format, int, int
]  # format of a matmul, convolution or attention, its FLOPs and its bytes


class Kind(NamedTuple):
    """Equal kinds cost the same. `sizes` are the integers (dimensions, counts) among what `words`
    describe; `shapes` is a hash of those inside, which follow no length."""

    words: tuple[Any, ...]
    sizes: tuple[int, ...]
    shapes: int = 0


@dataclass(frozen=True)
class Cost:
    """FLOPs of a phase by format, needed and executed, bytes that matmuls moved, and numbers of
    alike `products`. `unshown` FLOPs ran outside modules and made no node: nothing shows whether the
    next phase has them too. `useful` FLOPs served real tokens; None if the model's arguments do not say
    which ones are."""

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
        """True if another cost has the same FLOPs; which of them are useful is a matter of data."""
        return other is not None and (self.formats, self.executed_formats) == (
            other.formats,
            other.executed_formats,
        )


@dataclass(slots=True)
class Phase:
    """One phase: what it began as and turned out to be, and its samples. `began` is autograd's
    number at its beginning, `left` as its model's forward ended. `place` is that of a forward pass's
    model, `through` the batch of each model that a backward pass is the first to go through."""

    entry: Kind
    kind: Kind
    batch: tuple[int, ...] = ()
    counted: bool = False
    began: int = 0
    left: int | None = None
    samples: int | None = None
    place: int | None = None
    through: Mapping[int, int | None] | None = None


def cost_of_all(counts: Sequence[tuple[Cost, int]]) -> Cost:
    """Cost of each of so many phases together; where some know which FLOPs are useful, all of the
    others' are."""
    needed = Counter[Format]()
    executed = Counter[Format]()
    products = Counter[Product]()
    for cost, count in counts:
        products.update({key: count * calls for key, calls in cost.products.items()})
        needed.update({key: count * flops for key, flops in cost.formats.items()})
        executed.update({key: count * flops for key, flops in cost.executed_formats.items()})
    moved = sum(count * cost.moved_bytes for cost, count in counts)
    useful = sum(
        count * (cost.model if cost.useful is None else cost.useful) for cost, count in counts
    )
    is_told = any(cost.useful is not None for cost, _ in counts)
    uncounted = frozenset[str]().union(*(cost.uncounted for cost, _ in counts))
    unshown = sum(count * cost.unshown for cost, count in counts)
    return Cost(needed, executed, moved, uncounted, useful if is_told else None, products, unshown)


def cost_of(operations: Operations, real: RealTokens | None = None) -> Cost:
    """The cost of what was counted, its useful part if `real` tokens are known; the optimiser is no
    part of it."""
    parts = []
    for key, totals in operations.totals.items():
        if key.direction in ("forward", "backward"):
            parts.append((key, totals))
    moved = sum(
        key.dtype.itemsize * totals.elements for key, totals in parts if key.dtype is not None
    )
    needed = operations.by_format()
    executed = operations.by_format(executed=True)
    products = Counter[Product]()
    for key, totals in parts:
        if key.dtype is not None and totals.calls > 0:
            size = round(key.dtype.itemsize * totals.elements / totals.calls)
            products[
                (key.dtype, "conv" in key.operator), round(totals.flops / totals.calls), size
            ] += totals.calls
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
    """Arguments without data, and the first tensor's dimensions, of which the first counts samples;
    empty without."""
    words = list[Any]()
    sizes = list[int]()
    batch = list[tuple[int, ...]]()
    _walk(value, words, sizes, batch)
    return Kind(tuple(words), tuple(sizes)), batch[0] if batch else ()


def _walk(value: Any, words: list[object], sizes: list[int], batch: list[tuple[int, ...]]) -> None:
    """Notes a value, and what it holds; pytrees would take several times as long."""
    if isinstance(value, torch.Tensor):
        _note_tensor(value, words, sizes, batch)
    elif isinstance(value, bool | str | None):
        words.append(value)
    elif isinstance(value, int):
        words.append(int)
        sizes.append(value)
    elif isinstance(value, tuple | list):
        words.append((type(value), len(value)))
        if type(value) is PackedSequence and not batch:
            batch.append((int(value.batch_sizes[0]),))
        for item in value:
            _walk(item, words, sizes, batch)
    elif isinstance(value, Mapping) or hasattr(value, "keys"):  # a tokenizer's batch is no mapping
        names = tuple(value.keys())
        words.append((dict, names))
        for name in names:
            _walk(value[name], words, sizes, batch)
    else:
        _note_other(value, words, sizes, batch)


def _note_tensor(
    value: torch.Tensor, words: list[object], sizes: list[int], batch: list[tuple[int, ...]]
) -> None:
    shape = sizes_of(value)
    words.append((value.dtype, len(shape), value.requires_grad, type(value), value.device))
    sizes.extend(shape)
    if batch:
        return
    if mapped := _mapped(value):
        # What is mapped one by one are samples; of more dimensions nothing says which of them
        # counts samples.
        batch.append((mapped,) if len(shape) < 2 or shape[0] == 1 else ())
    elif shape:
        batch.append(tuple(shape))


def _note_other(
    value: object, words: list[object], sizes: list[int], batch: list[tuple[int, ...]]
) -> None:
    leaves, structure = tree_flatten(value)
    if len(leaves) != 1 or leaves[0] is not value:
        words.append(structure)
        for leaf in leaves:
            _walk(leaf, words, sizes, batch)
        return
    words.append(type(value))
    if hasattr(value, "get_seq_length"):  # a key-value cache, which costs by what it holds
        sizes.append(int(value.get_seq_length()))


def _mapped(tensor: torch.Tensor) -> int:
    """Number of tensors that `torch.vmap` shows as this one; 0 outside it."""
    functorch = torch._C._functorch
    count = 0
    while functorch.is_functorch_wrapped_tensor(tensor):
        inner = functorch.get_unwrapped(tensor)
        if functorch.is_batchedtensor(tensor):
            count = max(1, count) * inner.shape[functorch.maybe_get_bdim(tensor)]
        tensor = inner
    return count


class Sums:
    """Costs of phases together, each sum made once. It keeps what it summed: an address that is
    free can be another cost's next."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, ...], tuple[Sequence[Cost | None], Cost | None]] = {}

    def of(self, costs: Sequence[Cost | None]) -> Cost | None:
        """Sum of costs; None if one is not known."""
        key = tuple(map(id, costs))
        if key not in self._sums:
            if len(self._sums) > MOST_SUMS:
                self._sums.clear()
            known = []
            for cost in costs:
                if cost is not None:
                    known.append((cost, 1))
            self._sums[key] = costs, cost_of_all(known) if len(known) == len(costs) else None
        return self._sums[key][1]


class Filling:
    """Useful FLOPs of equal calls in a row that fill a static cache: counted at some places of a
    run, straight in between. Places count from 1."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.useful: dict[int, float] = {}
        self._mean = (0, 0.0)

    def wants(self, place: int) -> bool:
        """Says whether a call at this place is to be counted: at powers of two, once."""
        return bool(self.useful) and place & (place - 1) == 0 and place not in self.useful

    @property
    def mean(self) -> float:
        """Mean over all calls so far."""
        whole = self.calls.total()
        if self._mean[0] != whole:
            self._mean = (
                whole,
                sum(calls * self._at(place) for place, calls in self.calls.items()) / whole,
            )
        return self._mean[1]

    def _at(self, place: int) -> float:
        places = sorted(self.useful)
        if len(places) == 1:
            return self.useful[places[0]]
        after = min(max(bisect.bisect_left(places, place), 1), len(places) - 1)
        (first, low), (last, high) = (
            (counted, self.useful[counted]) for counted in places[after - 1 : after + 1]
        )
        return low + (high - low) * (place - first) / (last - first)


class KnownCosts:
    """Costs of kinds, by what a phase began as (`entry`) and by what it turned out to be.
    `differing` names a kind whose two counts differ, so that neither is its cost."""

    def __init__(self) -> None:
        self._costs: dict[Kind, Cost | None] = {}
        self._entries: dict[Kind, Cost | None] = {}
        self._begun: Counter[Kind] = Counter()
        self._missing: dict[Kind, set[Kind]] = {}
        self._tries: Counter[Kind] = Counter()
        self._due: set[Kind] = set()
        # By what phases began as and their number: the missing kind that is expected there; and the
        # number at which each missing kind turned up last.
        self._expected: dict[tuple[Kind, int], Kind] = {}
        self._turned_up: dict[Kind, int] = {}
        self._of_sizes: defaultdict[object, list[Kind]] = defaultdict(list)
        self._derived: set[Kind] = set()
        self._counts = 0
        self._forward: Kind | None = None
        self._place = 0
        self._fillings: defaultdict[Kind, Filling] = defaultdict(Filling)
        self._filling_of: dict[Kind, Filling] = {}
        self.differing: Said | None = None

    @property
    def numbers(self) -> tuple[int, int]:
        """Numbers of kinds that were counted, and of kinds that cost what others like them cost."""
        return len(self._costs), len(self._derived)

    def cost(self, kind: Kind) -> Cost | None:
        """Cost of a kind; None if it was neither counted nor follows from others."""
        if kind in self._costs:
            cost = self._costs[kind]
        elif cost := self._alike(self._costs, kind):
            self._derived.add(kind)
        if cost is not None and kind in self._filling_of:
            return replace(cost, useful=min(self._filling_of[kind].mean, cost.model))
        return cost

    def has(self, kind: Kind) -> bool:
        """True if a kind was counted, or follows from others."""
        return kind in self._costs or self._alike(self._costs, kind) is not None

    def wants(self, entry: Kind) -> bool:
        """Says whether to count a phase that begins so."""
        self._begun[entry] += 1
        filling = self._fillings[entry]
        if entry.words[0] == "forward":
            self._place = self._place + 1 if entry == self._forward else 1
            self._forward = entry
            filling.calls[self._place] += 1
        if self._counts >= MOST_COUNTED:
            return False
        is_due = self._begun[entry] in CHECKED or entry in self._due or filling.wants(self._place)
        self._due.discard(entry)
        expected = self._expected.pop((entry, self._begun[entry]), None)
        is_expected = expected is not None and expected not in self._costs
        if is_due or is_expected or entry in self._missing:
            return True
        return entry not in self._entries and self._alike(self._entries, entry) is None

    def passed(self, entries: Iterable[Kind], steps: int) -> None:
        """Notes phases of steps that nothing watched: the next of a kind is counted again where one
        of them was due."""
        for entry in entries:
            before = self._begun[entry]
            self._begun[entry] += steps
            if any(before < due <= before + steps for due in CHECKED):
                self._due.add(entry)

    def doubt(self, entry: Kind, kind: Kind) -> None:
        """Notes a phase that began as a known one and was of an unknown kind: the next of such
        are counted, and the one that is as far away as the last of its kind was. Nothing is noted once
        no more is counted."""
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
        """Notes a count."""
        cost = cost_of(operations, real)
        for costs, key in ((self._costs, kind), (self._entries, entry)):
            if key not in costs:
                self._of_sizes[id(costs), key.words, key.sizes].append(key)
            if not cost.same_flops(costs.setdefault(key, cost)):
                costs[key] = None
                if key is kind:
                    self.differing = Said("phases_differ", {"phase": kind.words[0]})
        if real is None and cost.useful is not None and entry == self._forward:
            filling = self._filling_of[kind] = self._fillings[entry]
            filling.useful[self._place] = cost.useful
        self._counts += 1
        missing = self._missing.pop(entry, set()) - {kind}
        self._tries.update(missing)
        if missing := {other for other in missing if self._tries[other] < MOST_TRIES}:
            self._missing[entry] = missing

    def _alike(self, costs: Mapping[Kind, Cost | None], kind: Kind) -> Cost | None:
        """Cost of kinds with other shapes inside (experts' shares of the tokens), if all of several
        cost the same."""
        alike = [
            costs[other] for other in self._of_sizes.get((id(costs), kind.words, kind.sizes), ())
        ]
        first = None
        if len(alike) >= ENOUGH_ALIKE:
            first = alike[0]
        if first is not None and all(map(first.same_flops, alike)):
            return first
        return None
