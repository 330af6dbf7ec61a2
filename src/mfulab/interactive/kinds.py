"""Kinds of work: what a phase of a loop was called with, and what it costs, counted or derived from counted ones."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten

from mfulab.flops.counter import Operations
from mfulab.flops.useful import RealTokens, useful_flops

# A quadratic needs three points; the fourth checks it.
ENOUGH_POINTS = 4
# So many points carry a polynomial some way beyond the farthest, at this share of the way.
MANY_POINTS, FARTHEST = 16, Fraction(4, 5)

Format = tuple[torch.dtype, bool]
"""The format that multiplied, and if convolutions did."""


class Kind(NamedTuple):
    """Equal kinds cost the same. `sizes` are the integers (dimensions, counts) among what `words` describe; `shapes` is
    a hash of those inside, which follow no length."""

    words: tuple[Any, ...]
    sizes: tuple[int, ...]
    shapes: int = 0


@dataclass(frozen=True)
class Cost:
    """FLOPs of a phase: what the model needs, what was executed, both by format; bytes that matmuls moved.

    `useful` are those that served real tokens, None if the model's arguments do not say which ones are.
    """

    model: int = 0
    executed: int = 0
    moved_bytes: int = 0
    formats: Mapping[Format, int] = field(default_factory=dict)
    uncounted: frozenset[str] = frozenset()
    useful: float | None = None
    executed_formats: Mapping[Format, int] = field(default_factory=dict)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.model + other.model,
            self.executed + other.executed,
            self.moved_bytes + other.moved_bytes,
            _summed(self.formats, other.formats),
            self.uncounted | other.uncounted,
            self._useful_with(other),
            _summed(self.executed_formats, other.executed_formats),
        )

    def _useful_with(self, other: "Cost") -> float | None:
        """Useful FLOPs of both; all of one are that says nothing, beside one that does."""
        if self.useful is None and other.useful is None:
            return None
        return sum(cost.model if cost.useful is None else cost.useful for cost in (self, other))


def _summed(one: Mapping[Format, int], other: Mapping[Format, int]) -> dict[Format, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def cost_of(operations: Operations, real: RealTokens | None = None) -> Cost:
    """The cost of what was counted, its useful part if `real` tokens are known; the optimiser is no part of it."""
    moved = sum(
        key.dtype.itemsize * totals.elements
        for key, totals in operations.totals.items()
        if key.dtype is not None and key.direction in ("forward", "backward")
    )
    return Cost(
        operations.model_flops,
        operations.hardware_flops,
        moved,
        operations.by_format(),
        frozenset(operations.uncounted),
        useful_flops(operations, real) if real else None,
        operations.by_format(executed=True),
    )


def describe(value: Any) -> tuple[Kind, tuple[int, ...]]:
    """Arguments without data: types, formats, switches and texts as words; dimensions and integers as sizes.

    With it comes the batch: the dimensions of the first tensor, of which the first counts samples; empty without one.
    """
    words: list[Any] = []
    sizes: list[int] = []
    batch: list[tuple[int, ...]] = []
    _walk(value, words, sizes, batch)
    return Kind(tuple(words), tuple(sizes)), batch[0] if batch else ()


def _walk(value: Any, words: list[Any], sizes: list[int], batch: list[tuple[int, ...]]) -> None:
    """Notes a value, and what it holds; by hand, since pytrees take several times as long."""
    if isinstance(value, torch.Tensor):
        shape = value.shape
        words.append((value.dtype, len(shape), value.requires_grad, type(value), value.device))
        sizes.extend(shape)
        if not batch and (mapped := _mapped(value)):
            # What is mapped one by one are samples; of more dimensions nothing says which of them counts samples.
            batch.append((mapped,) if len(shape) < 2 or shape[0] == 1 else ())
        elif shape and not batch:
            batch.append(tuple(shape))
    elif isinstance(value, bool | str | None):
        words.append(value)
    elif isinstance(value, int):
        words.append(int)
        sizes.append(value)
    elif isinstance(value, tuple | list):
        words.append((type(value), len(value)))
        if type(value) is PackedSequence and not batch:
            batch.append((int(value.batch_sizes[0]),))
        for each in value:
            _walk(each, words, sizes, batch)
    elif isinstance(value, Mapping) or hasattr(value, "keys"):  # a tokenizer's batch is no mapping
        names = tuple(value.keys())
        words.append((dict, names))
        for name in names:
            _walk(value[name], words, sizes, batch)
    else:
        _walk_inside(value, words, sizes, batch)


def _mapped(tensor: torch.Tensor) -> int:
    """Number of tensors that `torch.vmap` shows as this one; 0 outside it."""
    functorch, found = torch._C._functorch, 0
    while functorch.is_functorch_wrapped_tensor(tensor):
        inner = functorch.get_unwrapped(tensor)
        if functorch.is_batchedtensor(tensor):
            found = max(1, found) * inner.shape[functorch.maybe_get_bdim(tensor)]
        tensor = inner
    return found


def _walk_inside(value: Any, words: list[Any], sizes: list[int], batch: list[tuple[int, ...]]) -> None:
    leaves, structure = tree_flatten(value)
    if len(leaves) == 1 and leaves[0] is value:
        words.append(type(value))
        if hasattr(value, "get_seq_length"):  # a key-value cache, which costs by what it holds
            sizes.append(int(value.get_seq_length()))
        return
    words.append(structure)
    for leaf in leaves:
        _walk(leaf, words, sizes, batch)


def derive(known: Mapping[Kind, Cost | None], kind: Kind, outside: bool = False) -> Cost | None:
    """The cost of a kind from counted ones that differ in one length alone; None if it does not follow.

    Costs are polynomials of a length (tokens, batch) of degree two at most: three points give the polynomial, and
    every further one must lie on it. A length must lie between counted ones, and on their lattice: a stride of two
    makes odd lengths cost another polynomial than even ones. The same lengths with other shapes inside (experts'
    shares of the tokens) cost the same if as many such kinds did, and as many elements went in.

    Args:
        known: costs; None for kinds of which not all cost the same.
        kind: the kind asked for.
        outside: whether a length a quarter beyond the largest of many may follow, to be confirmed by a later count.
    """
    alike = {other: cost for other, cost in known.items() if other.words == kind.words}
    if None in alike.values():
        return None
    same = [cost for other, cost in alike.items() if other.sizes == kind.sizes]
    if same:
        return same[0] if len(same) >= ENOUGH_POINTS and all(alike_cost(cost, same[0]) for cost in same) else None
    for anchor in alike:
        points: dict[Fraction, Cost] = {}
        for other, cost in alike.items():
            place = _place(anchor.sizes, kind.sizes, other.sizes)
            if place is not None and cost is not None:
                if place in points and not alike_cost(points[place], cost):
                    return None
                points[place] = cost
        if len(points) >= ENOUGH_POINTS:
            enough = MANY_POINTS if outside else ENOUGH_POINTS
            reach = FARTHEST if outside else 1
            inside = len(points) >= enough and max(points) >= reach and _lattice(points)
            return _extended(points) if inside else None
    return None


def alike_cost(one: Cost | None, other: Cost | None) -> bool:
    """Says whether two costs have the same FLOPs; which of them are useful is a matter of data."""
    return one is other or (
        one is not None
        and other is not None
        and (one.executed, one.formats, one.executed_formats) == (other.executed, other.formats, other.executed_formats)
        and one.model == other.model
    )


def _lattice(places: Iterable[Fraction]) -> bool:
    """Says whether 1 is a whole number of the steps that lie between the places, of which one is 0."""
    found = list(places)
    common = math.lcm(*(place.denominator for place in found))
    return common % math.gcd(*(int(place * common) for place in found)) == 0


def _place(start: tuple[int, ...], end: tuple[int, ...], point: tuple[int, ...]) -> Fraction | None:
    """Place of `point` on the line from `start` (0) to `end` (1); None beside it."""
    if len(start) != len(end) or len(point) != len(end):
        return None
    place = None
    for a, b, p in zip(start, end, point, strict=True):
        if a == b:
            if p != a:
                return None
        else:
            own = Fraction(p - a, b - a)
            if place is not None and own != place:
                return None
            place = own
    return place


def _extended(points: Mapping[Fraction, Cost]) -> Cost | None:
    """The cost at 1 of the quadratic through three points that all others lie on."""
    base, others = list(points.items())[:3], list(points.items())[3:]
    names, again = (list(formats) for formats in (base[0][1].formats, base[0][1].executed_formats))
    if any(set(cost.formats) != set(names) or set(cost.executed_formats) != set(again) for cost in points.values()):
        return None

    def values(cost: Cost) -> list[int]:
        by_format = (*(cost.formats[name] for name in names), *(cost.executed_formats[name] for name in again))
        return [cost.model, cost.executed, cost.moved_bytes, *by_format]

    def at(place: Fraction) -> list[Fraction]:
        weights = []
        for here, _ in base:
            weight = Fraction(1)
            for there, _ in base:
                if there != here:
                    weight *= (place - there) / (here - there)
            weights.append(weight)
        columns = zip(*(values(cost) for _, cost in base), strict=True)
        return [sum((w * v for w, v in zip(weights, column, strict=True)), Fraction(0)) for column in columns]

    if any(at(place) != values(cost) for place, cost in others):
        return None
    found = at(Fraction(1))
    if any(value.denominator != 1 or value < 0 for value in found):
        return None
    model, executed, moved, *formats = (int(value) for value in found)
    uncounted = frozenset[str]().union(*(cost.uncounted for cost in points.values()))
    useful = None
    if all(cost.useful is not None for cost in points.values()):  # documents follow no polynomial: their mean share
        whole = sum(cost.model for cost in points.values())
        useful = model * sum(cost.useful or 0 for cost in points.values()) / (whole or 1)
    of_model, of_executed = formats[: len(names)], formats[len(names) :]
    needed = dict(zip(names, of_model, strict=True))
    return Cost(model, executed, moved, needed, uncounted, useful, dict(zip(again, of_executed, strict=True)))
