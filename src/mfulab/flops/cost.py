"""Cost of one call of an operator, and the pairs of query and key that attention's cost is made of.
Needs no torch. Three numbers of pairs, for everybody counts differently: *full*, each query of a
document meets all of its document's keys (PaLM's convention; with a window, as many keys as the
window holds); *attended*, the pairs that the mask leaves, a causal triangle as the half of its
square, without the diagonal's other half, as FlashAttention's authors do; and
*executed*, what the kernel goes through."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from operator import add

FLOPS = (
    *("flops", "causal_flops", "executed_flops"),
    *("attention_flops", "rectangle_flops", "padding_flops", "unfilled_flops"),
)


@dataclass(frozen=True)
class Cost:
    """FLOPs of one call."""

    flops: int  # what the mathematics of the model needs, attention counted full. MFU
    causal_flops: int  # the same with attention counted by the pairs that it attends to
    executed_flops: int  # what the kernel does, flash attention's recomputation included. HFU
    attention_flops: int = 0  # the part of `flops` that grows with pairs of tokens
    # that part if every query met every key, padding and other documents' included
    rectangle_flops: int = 0
    # of `attention_flops`, those that serve padding, as far as a mask shows it
    padding_flops: int = 0
    # of `attention_flops`, those with slots of a static cache that no query sees
    unfilled_flops: int = 0
    # whether the true numbers may be smaller: a mask or lengths had no data to look into
    bound: bool = False
    # of the square that a plain product makes or takes; pairs of tokens if it is as wide as a row
    side: int = 0

    @classmethod
    def of(cls, flops: int | Cost) -> Cost:
        """The cost of FLOPs that are needed and executed alike; a cost itself."""
        if isinstance(flops, Cost):
            return flops
        return cls(int(flops), int(flops), int(flops))


@dataclass(frozen=True)
class Pairs:
    """Pairs of query and key of one head, summed over the sequences of a batch."""

    full: float  # of each document's queries with all its keys, a window's width at most
    attended: float  # those that the mask leaves
    executed: float  # those that the kernel goes through
    # of all queries with all keys, padding and other documents' included; 0 without one
    rectangle: float = 0
    bound: float = 0  # above 0 if the true numbers may be smaller: a mask or lengths without data
    # of `full`, those that meet a token which nobody sees, as far as a mask shows it
    padding: float = 0

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(*map(add, astuple(self), astuple(other)))

    def times(self, factor: float) -> Pairs:
        """Cost of `factor` calls that are alike."""
        return Pairs(*(factor * part for part in astuple(self)))


def dense_pairs(queries: int, keys: int, is_causal: bool) -> Pairs:
    """One sequence without a mask of its own; causal is aligned at the upper left, as torch does
    it."""
    whole = queries * keys
    causal = queries**2 / 2 if queries <= keys else keys**2 / 2 + (queries - keys) * keys
    return Pairs(whole, causal if is_causal else whole, whole, whole)


def document_pairs(
    queries: int, keys: int, is_causal: bool, left: int | None = None, right: int | None = None
) -> Pairs:
    """One document of a kernel that takes lengths or windows; the last query is aligned with the
    last key. A query sees `left` keys before its place and `right` after it; None and -1 are no
    limit."""
    left, right = (-1 if side is None else side for side in (left, right))
    if is_causal:
        right = 0
    if left < 0 and right < 0:
        return Pairs(queries * keys, queries * keys, queries * keys)
    shift = keys - queries
    reached = _below(queries, keys, shift + right) if right >= 0 else queries * keys
    attended = float(reached - (_below(queries, keys, shift - left - 1) if left >= 0 else 0))
    widest = min(keys, left + right + 1) if left >= 0 and right >= 0 else keys
    if right == 0 and widest == keys:
        attended -= min(queries, keys) / 2
    return Pairs(queries * widest, attended, queries * widest)


def _below(queries: int, keys: int, shift: int) -> int:
    """Pairs of query i and key j with j ≤ i + shift."""
    # Query i has clamp(i + shift + 1, 0, keys) of them: none before `first`, all from `last` on.
    first, last = (min(max(place, 0), queries) for place in (-shift, keys - shift))
    between = last - first
    return between * (first + shift + 1) + between * (between - 1) // 2 + (queries - last) * keys
