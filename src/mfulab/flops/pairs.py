"""Pairs of query and key in attention. Needs no torch.

Three numbers, for everybody counts differently: *full*, each query of a document meets all of its document's keys
(PaLM's convention; with a window, as many keys as the window holds); *attended*, the pairs that the mask leaves, a
causal triangle as the half of its square, without the diagonal's other half, as FlashAttention's authors do; and
*executed*, what the kernel goes through.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace


@dataclass(frozen=True)
class Pairs:
    """Pairs of query and key of one head, summed over the sequences of a batch.

    Attributes:
        full: of each document's queries with all its keys, a window's width at most.
        attended: those that the mask leaves.
        executed: those that the kernel goes through.
        rectangle: of all queries with all keys, padding and other documents' included; 0 without one.
        bound: whether the true numbers may be smaller: a mask or lengths without data.
        padding: of `full`, those that meet a token which nobody sees, as far as a mask shows it.
    """

    full: float
    attended: float
    executed: float
    rectangle: float = 0
    bound: bool = False
    padding: float = 0

    def __add__(self, other: Pairs) -> Pairs:
        summed = (one + two for one, two in zip(astuple(self), astuple(other), strict=True))
        return replace(Pairs(*summed), bound=self.bound or other.bound)

    def times(self, factor: float) -> Pairs:
        """As many for each of `factor` alike."""
        return replace(Pairs(*(factor * part for part in astuple(self))), bound=self.bound)


def dense_pairs(queries: int, keys: int, is_causal: bool) -> Pairs:
    """One sequence without a mask of its own; causal is aligned at the upper left, as torch does it."""
    whole = queries * keys
    causal = queries**2 / 2 if queries <= keys else keys**2 / 2 + (queries - keys) * keys
    return Pairs(whole, causal if is_causal else whole, whole, whole)


def document_pairs(queries: int, keys: int, is_causal: bool, left: int = -1, right: int = -1) -> Pairs:
    """One document of a kernel that takes lengths or windows; the last query is aligned with the last key.

    A query sees `left` keys before its own place and `right` after it; -1 is without a limit, causal is `right` = 0.
    """
    left, right = (-1 if side is None else side for side in (left, right))
    right = 0 if is_causal and right != 0 else right
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
