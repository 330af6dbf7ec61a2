"""Cost of one operator call, and the query-key pairs that attention's cost depends on. Needs no
torch. Pairs are counted in three ways, since conventions differ. *Full*: each query of a document
meets all keys of its document, or those in its window (PaLM's convention). *Attended*: pairs that
the mask leaves. A causal triangle counts as half of its square, without half of the diagonal, as
FlashAttention's authors count. *Executed*: pairs that the kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import add

FLOPS = (
    "flops",
    "causal_flops",
    "executed_flops",
    "attention_flops",
    "rectangle_flops",
    "padding_flops",
    "unfilled_flops",
)


Matmul = tuple[int, int, int, int]  # batch, m, n and k, or what stands for them


@dataclass(frozen=True)
class Cost:
    """FLOPs of one call."""

    flops: int  # needed by the model's mathematics, attention counted full; for MFU
    causal_flops: int  # the same, with attention counted by attended pairs
    executed_flops: int  # executed by the kernel, flash attention's recomputation included; for HFU
    attention_flops: int = 0  # part of `flops` that grows with pairs of tokens
    # that part if every query met every key, including padding and other documents
    rectangle_flops: int = 0
    # part of `attention_flops` spent on padding, as far as a mask shows it
    padding_flops: int = 0
    # part of `attention_flops` spent on slots of a static cache that no query sees
    unfilled_flops: int = 0
    # whether the true numbers may be smaller, as a mask or lengths had no data
    bound: bool = False
    # side of the square that a plain matmul makes or takes; if it equals a row's length, the
    # square holds pairs of tokens
    side: int = 0

    @classmethod
    def of(cls, flops: int | Cost) -> Cost:
        """Cost of FLOPs that are all needed and all executed. A Cost is returned as it is."""
        if isinstance(flops, Cost):
            return flops
        return cls(int(flops), int(flops), int(flops))


@dataclass(frozen=True)
class Pairs:
    """Pairs of query and key of one head, summed over the sequences of a batch."""

    full: float  # each document's queries with all its keys, a window's width at most
    attended: float  # pairs that the mask leaves
    executed: float  # pairs that the kernel computes
    # all queries with all keys, including padding and other documents; 0 if unknown
    rectangle: float = 0
    bound: float = 0  # above 0 if the true numbers may be smaller: a mask or lengths without data
    # part of `full` with tokens that no query sees, as far as a mask shows it
    padding: float = 0

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(*map(add, astuple(self), astuple(other)))

    def times(self, factor: float) -> Pairs:
        """Pairs of `factor` identical calls."""
        return Pairs(*(factor * part for part in astuple(self)))


def dense_pairs(queries: int, keys: int, is_causal: bool) -> Pairs:
    """Pairs of one sequence without a mask. A causal triangle is aligned at the upper left, as in
    torch."""
    rectangle = queries * keys
    attended: float = rectangle
    if is_causal and queries <= keys:
        attended = queries**2 / 2
    elif is_causal:
        attended = keys**2 / 2 + (queries - keys) * keys
    return Pairs(rectangle, attended, rectangle, rectangle)


def document_pairs(
    queries: int, keys: int, is_causal: bool, left: int | None = None, right: int | None = None
) -> Pairs:
    """Pairs of one document, for kernels that take lengths or windows. The last query is aligned
    with the last key. A query sees `left` keys before its position and `right` after it; None and
    -1 mean no limit."""
    left = -1 if left is None else left
    right = -1 if right is None else right
    if is_causal:
        right = 0
    if left < 0 and right < 0:
        return Pairs(queries * keys, queries * keys, queries * keys)
    shift = keys - queries
    width = keys
    if left >= 0 and right >= 0:
        width = min(keys, left + right + 1)
    reached = queries * keys
    if right >= 0:
        reached = _below(queries, keys, shift + right)
    if left >= 0:
        reached -= _below(queries, keys, shift - left - 1)
    attended = float(reached)
    if right == 0 and width == keys:
        attended -= min(queries, keys) / 2
    return Pairs(queries * width, attended, queries * width)


def packed_pairs(
    queries: Sequence[int],
    keys: Sequence[int],
    is_causal: bool,
    left: int | None = None,
    right: int | None = None,
) -> Pairs:
    """Pairs of several documents, given the numbers of queries and of keys of each."""
    pairs = Pairs(0, 0, 0)
    for query_count, key_count in zip(queries, keys, strict=True):
        pairs += document_pairs(query_count, key_count, is_causal, left, right)
    return pairs


def _below(queries: int, keys: int, shift: int) -> int:
    """Number of pairs of query i and key j with j ≤ i + shift."""
    # Query i has clamp(i + shift + 1, 0, keys) of them: none before `first`, all from `last` on.
    first = min(max(-shift, 0), queries)
    last = min(max(keys - shift, 0), queries)
    between = last - first
    return between * (first + shift + 1) + between * (between - 1) // 2 + (queries - last) * keys
