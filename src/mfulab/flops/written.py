"""Attention written as matmuls: two products with a softmax between them, and a mask on the scores.
As for a fused operator, the mask shows which pairs the model needs: windows, documents and the
causal half. It is applied only after the first product ran, so that product's cost is corrected
later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from mfulab.flops.cost import Cost, Pairs
from mfulab.flops.masks import MASKED, mask_pairs, with_values

PRODUCTS = frozenset({"aten::bmm", "aten::baddbmm"})
_SOFTMAX = frozenset({"aten::_softmax", "aten::_safe_softmax"})
# Operators between the first product and the softmax that keep each score apart: those that change
# shapes, and those that change values.
_SHAPE_OPERATORS = (
    "view",
    "_unsafe_view",
    "reshape",
    "clone",
    "_to_copy",
    "expand",
    "unsqueeze",
    "squeeze",
    "cat",
    "slice",
)
_VALUE_OPERATORS = (
    "mul",
    "mul_",
    "div",
    "div_",
    "add",
    "add_",
    "sub",
    "sub_",
    "tanh",
    "masked_fill",
    "masked_fill_",
    "where",
)
_ELEMENTWISE = frozenset(
    f"aten::{name}" for name in (*_SHAPE_OPERATORS, *_VALUE_OPERATORS, "alias", "detach")
)
_CACHED_MASKS = 4  # masks whose pairs are cached, as every layer uses the same


@dataclass(frozen=True)
class Scores:
    """A product that may be attention's scores, and the masks applied to it so far."""

    key: Any  # in the totals under which its cost was added
    module: torch.nn.Module  # module that ran it
    cost: Cost  # by the pairs that were remembered of an earlier call, if any
    plain: Cost  # of all pairs
    queries: int
    keys: int
    masks: tuple[tuple[Tensor, bool], ...] = ()  # each with whether True hides a score


class WrittenAttention:
    """Follows products to their softmax, and remembers the pairs that each module's masks leave."""

    # Module → (queries, keys) → pairs. Shared, as another counter may count the backward pass.
    _pairs_of: ClassVar[WeakKeyDictionary[torch.nn.Module, dict[tuple[int, int], Pairs]]] = (
        WeakKeyDictionary()
    )

    def __init__(self) -> None:
        self._scores: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._pairs_of_masks: list[tuple[tuple[Any, ...], list[Tensor], Pairs]] = []

    def cost(self, module: torch.nn.Module, cost: Cost, a: Tensor, b: Tensor) -> Cost:
        """Cost of a product; if its sides are queries and keys of its module's attention, by the
        pairs that masks leave. A backward pass whose forward pass was not seen belongs to the whole
        model, and takes the mean of all layers."""
        rows = a.shape[-2]
        inner = a.shape[-1]
        columns = b.shape[-1]
        sides = (rows, inner), (rows, columns), (inner, columns)
        modules = [module] if module in self._pairs_of else module.modules()
        remembered = [self._pairs_of[owner] for owner in modules if owner in self._pairs_of]
        reversed_sides = [(keys, queries) for queries, keys in sides]
        for queries, keys in (*sides, *reversed_sides):
            of_sides = [pairs[queries, keys] for pairs in remembered if (queries, keys) in pairs]
            if of_sides:
                mean = sum(of_sides[1:], of_sides[0]).times(1 / len(of_sides))
                return _by_pairs(cost, mean, queries * keys, queries < keys)
        return cost

    def record(
        self, key: object, module: torch.nn.Module, cost: Cost, plain: Cost, out: Tensor
    ) -> None:
        """Records the result of a product that may be attention's scores, with its cost as `cost`
        returned it and its `plain` one."""
        if out.ndim == 3 and out.shape[-1] > 1:
            self._scores[out] = Scores(key, module, cost, plain, out.shape[-2], out.shape[-1])

    def follow(
        self, name: str, out: object, args: tuple[object, ...]
    ) -> tuple[Any, Cost, Cost] | None:
        """Follows scores through an operator. At a softmax, returns the scores' key in the totals,
        their cost so far, and their corrected cost. None before it, and if nothing changes."""
        flat = list[object]()
        for argument in args:
            flat.extend(argument if isinstance(argument, list | tuple) else (argument,))
        position = None
        for index, argument in enumerate(flat):
            if isinstance(argument, Tensor) and argument in self._scores:
                position = index
                break
        if position is None:
            return None
        scores: Scores = self._scores[flat[position]]
        if name in _SOFTMAX:
            if scores.masks:
                return self._corrected(scores)
            return self._forgotten(scores)
        if name in _ELEMENTWISE and isinstance(out, Tensor):
            mask = _mask_of(name, flat, position, scores)
            if mask is not None:
                scores = replace(scores, masks=(*scores.masks, mask))
            self._scores[out] = scores
        return None

    def _corrected(self, scores: Scores) -> tuple[Any, Cost, Cost]:
        """Returns the scores' key, their cost so far, and the cost corrected by the masks;
        remembers the pairs for later products."""
        pairs = self._pairs(scores)
        self._pairs_of.setdefault(scores.module, {})[scores.queries, scores.keys] = pairs
        all_pairs = scores.queries * scores.keys
        corrected = _by_pairs(scores.cost, pairs, all_pairs, scores.queries < scores.keys)
        return scores.key, scores.cost, corrected

    def _forgotten(self, scores: Scores) -> tuple[Any, Cost, Cost] | None:
        """Forgets the pairs that masks of an earlier call left, as this call has none. Returns the
        scores' key, their cost so far, and their plain cost; None if nothing was remembered."""
        remembered = self._pairs_of.get(scores.module, {})
        if remembered.pop((scores.queries, scores.keys), None) is None:
            return None
        return scores.key, scores.cost, scores.plain

    def _pairs(self, scores: Scores) -> Pairs:
        """Pairs that all masks on the scores leave. All pairs, as a bound, if a mask has no data."""
        sides = scores.queries, scores.keys
        masks = [(with_values(mask), hides) for mask, hides in scores.masks]
        if any(mask is None for mask, _ in masks):
            return replace(mask_pairs(None, *sides), bound=True)
        key = (*sides, *((*_identity(mask), hides) for mask, hides in masks))
        for earlier_key, _, pairs in self._pairs_of_masks:
            if earlier_key == key:
                return pairs
        with _disable_current_modes():
            visible, *others = [_visible(mask, hides) for mask, hides in masks]
            for other in others:
                visible = visible & other
            pairs = mask_pairs(visible, *sides)
        # The masks are kept alive, so that their addresses in the key stay theirs.
        alive = [mask for mask, _ in masks]
        self._pairs_of_masks = [*self._pairs_of_masks[1 - _CACHED_MASKS :], (key, alive, pairs)]
        return pairs


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Key that is equal only for the same, unmodified data."""
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version


def _visible(mask: Tensor, hides: bool) -> Tensor:
    """Boolean mask that is True for visible scores. `hides` is True if `mask` is True for hidden
    ones."""
    mask = mask.detach()
    if hides:
        return ~mask
    if mask.dtype == torch.bool:
        return mask
    return mask > MASKED


def _mask_of(
    name: str, arguments: list[Any], position: int, scores: Scores
) -> tuple[Tensor, bool] | None:
    """Mask that an operator applies to scores (an addend, or True where they are filled), and
    whether True hides. None if the operator applies no mask. `position` is the index of the scores
    among the arguments."""
    kind = name.removeprefix("aten::").rstrip("_")
    mask_position = {"add": 1 - position, "masked_fill": 1, "where": 0}.get(kind, position)
    mask = None
    if 0 <= mask_position < len(arguments) and mask_position != position:
        mask = arguments[mask_position]
    if not isinstance(mask, Tensor) or mask.ndim < 2:
        return None
    queries, keys = mask.shape[-2:]
    if keys != scores.keys or queries not in (1, scores.queries):
        return None
    if kind != "add" and mask.dtype != torch.bool:
        return None
    hides = kind == "masked_fill" or (kind == "where" and position == 2)
    return mask, hides


def _by_pairs(cost: Cost, pairs: Pairs, all_pairs: int, in_cache: bool) -> Cost:
    """Corrects a product's cost to the pairs that are needed. `all_pairs` is the number of executed
    pairs of a head and sequence."""
    full = int(cost.executed_flops * pairs.full / all_pairs)
    attended = int(cost.executed_flops * pairs.attended / all_pairs)
    padding = int(cost.executed_flops * pairs.padding / all_pairs)
    return replace(
        cost,
        flops=full,
        causal_flops=attended,
        attention_flops=full,
        rectangle_flops=cost.executed_flops,
        padding_flops=padding,
        unfilled_flops=padding if in_cache else 0,
        bound=bool(pairs.bound),
    )
