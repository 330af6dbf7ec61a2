"""Attention in all forms: what its pairs of query and key cost. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import yaml

from mfulab.flops.cost import Cost
from mfulab.flops.masks import lengths_of, mask_pairs
from mfulab.flops.pairs import Pairs, dense_pairs, document_pairs

Shape = Sequence[int]


def attention_cost(query: Shape, value: Shape, pairs: Pairs, products: float, executed: float) -> Cost:
    """Cost of `products` matmuls over all pairs, of which the kernel does `executed`.

    Args:
        query: [..., heads, tokens, width of a head], or [tokens, heads, width]; the last dimension is read.
        value: as `query`.
        pairs: of all heads and sequences.
        products: forward 2, the scores and their product with the values. Backward 4, the gradients of values,
            probabilities, queries and keys.
        executed: backward 5, since flash attention makes the scores anew.
    """
    widths = query[-1] + value[-1]  # 2 FLOPs of half of both
    full, attended, rectangle, padding = (
        int(widths * part * products) for part in (pairs.full, pairs.attended, pairs.rectangle, pairs.padding)
    )
    return Cost(full, attended, int(widths * pairs.executed * executed), full, rectangle, padding, bool(pairs.bound))


# The arguments of each kernel as far as they are read, by this module's names.
_TABLE = yaml.safe_load(Path(__file__).with_name("attention.yaml").read_text(encoding="utf-8"))
SIGNATURES: dict[str, str] = _TABLE["fixed"]
VARIABLE_SIGNATURES: dict[str, str] = _TABLE["variable"]
# Names by which keyword arguments go in the operators' own schemas.
KEYWORDS = {theirs: ours for ours, names in _TABLE["keywords"].items() for theirs in names.split()}


def bind(signature: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by this module's names."""
    given = dict(zip(signature.split(), args, strict=False))
    return given | {KEYWORDS.get(name, name): value for name, value in kwargs.items()}


def products_of(given: dict[str, Any], backward: bool) -> tuple[int, int]:
    """Products that are needed, and that are executed; of a backward pass those whose gradients are asked for."""
    if not backward:
        return 2, 2
    for_query, for_key, for_value = given.get("needs_gradient") or (True,) * 3
    return (for_query or for_key) + for_query + for_key + for_value, 5


def sdpa_cost(given: dict[str, Any], backward: bool) -> Cost:
    """torch's `scaled_dot_product_attention`: [..., heads, tokens, width], with a mask or causal."""
    query, key, value = (given[name].shape for name in ("query", "key", "value"))
    mask = given.get("mask")
    if known := given.get("pairs"):
        pairs = Pairs(*known)
    elif mask is None:
        pairs = dense_pairs(query[-2], key[-2], bool(given.get("is_causal")))
    else:
        pairs = mask_pairs(mask, query[-2], key[-2])
    return attention_cost(query, value, pairs.times(prod(query[:-2])), *products_of(given, backward))


def variable_cost(given: dict[str, Any], backward: bool) -> Cost:
    """Kernels that take lengths and windows: [batch, tokens, heads, width], packed [(1,) tokens, heads, width]."""
    query, key, value = (given[name].shape for name in ("query", "key", "value"))
    causal, left, right = bool(given.get("is_causal")), given.get("left"), given.get("right")
    if kind := given.get("kind"):  # 1 aligns at the upper left, 2 at the lower right
        causal = kind > 0
    if given.get("window"):
        left = given["window"] - 1
    if sides := given.get("window_sides"):
        left, right = sides
    sides_of = (-1 if left is None else left, -1 if right is None else right)
    ends = given.get("query_ends"), given.get("key_ends")
    if ends[0] is None:
        pairs = document_pairs(query[-3], key[-3], causal, *sides_of).times(prod(query[:-3]))
    else:
        pairs = _packed(query, ends[0], ends[1] if ends[1] is not None else ends[0], given, causal, sides_of)
    return attention_cost(query, value, pairs.times(query[-2]), *products_of(given, backward))


def _packed(
    query: Shape, query_ends: Any, key_ends: Any, given: dict[str, Any], causal: bool, sides: tuple[int, int]
) -> Pairs:
    queries, keys = lengths_of(query_ends), lengths_of(key_ends)
    if queries is None or keys is None:
        longest = given.get("longest_key") or query[-3]
        # Tokens alone are known: none sees more keys than the longest document has.
        whole = query[-3] * longest
        return Pairs(whole, whole / 2 if causal else whole, whole, bound=True)
    total = Pairs(0, 0, 0)
    for length, length_of_keys in zip(queries, keys, strict=True):
        total += document_pairs(length, length_of_keys, causal, *sides)
    return total
