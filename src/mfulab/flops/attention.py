"""Cost of all kinds of attention, from their query-key pairs. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from mfulab.core.data import data
from mfulab.flops.cost import Cost, Pairs, dense_pairs, document_pairs
from mfulab.flops.masks import lengths_of, mask_pairs

# Arguments of each kernel, as far as they are read, under this module's names.
_TABLE = data(Path(__file__).with_name("attention.yaml"))
SIGNATURES: dict[str, str] = _TABLE["fixed"]
VARIABLE_SIGNATURES: dict[str, str] = _TABLE["variable"]
ATTENTION = SIGNATURES | VARIABLE_SIGNATURES
# Keyword in operators' own schemas → this module's name.
KEYWORDS = {theirs: ours for ours, names in _TABLE["keywords"].items() for theirs in names.split()}


def bind(signature: str, args: Sequence[object], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Maps an operator's arguments to this module's names."""
    given = dict(zip(signature.split(), args, strict=False))
    return given | {KEYWORDS.get(name, name): value for name, value in kwargs.items()}


def _cost(given: dict[str, Any], pairs: Pairs, backward: bool) -> Cost:
    """Cost of attention's matmuls over these pairs. Forward has two. Backward needs one per
    gradient, and one for the scores' gradient; the kernel executes five."""
    products = executed = 2
    if backward:
        for_query, for_key, for_value = given.get("needs_gradient") or (True,) * 3
        products = (for_query or for_key) + for_query + for_key + for_value
        executed = 5
    widths = given["query"].shape[-1] + given["value"].shape[-1]  # 2 FLOPs × mean of both widths
    full, attended, rectangle, padding = (
        int(widths * part * products)
        for part in (pairs.full, pairs.attended, pairs.rectangle, pairs.padding)
    )
    # More keys than queries belong to a cache, where a key that no query sees is an empty slot.
    unfilled = padding if given["key"].shape[-2] > given["query"].shape[-2] else 0
    done = int(widths * pairs.executed * executed)
    return Cost(full, attended, done, full, rectangle, padding, unfilled, bool(pairs.bound))


def sdpa_cost(given: dict[str, Any], backward: bool) -> Cost:
    """Cost of torch's `scaled_dot_product_attention`: [..., heads, tokens, width], with a mask or
    causal."""
    query = given["query"].shape
    mask = given.get("mask")
    sides = query[-2], given["key"].shape[-2]
    if given_pairs := given.get("pairs"):
        pairs = Pairs(*given_pairs)
    elif mask is None:
        pairs = dense_pairs(*sides, bool(given.get("is_causal")))
    else:
        pairs = mask_pairs(mask, *sides)
    return _cost(given, pairs.times(prod(query[:-2])), backward)


def variable_cost(given: dict[str, Any], backward: bool) -> Cost:
    """Cost of kernels that take lengths and windows: [batch, tokens, heads, width], or packed [(1,)
    tokens, heads, width]."""
    query = given["query"].shape
    query_ends = given.get("query_ends")
    key_ends = given.get("key_ends")
    # Kinds of masks: 0 is none, 1 is causal from the upper left, 2 from the lower right.
    causal = bool(given.get("kind") or given.get("is_causal"))
    left, right = given.get("window_sides") or (given.get("left"), given.get("right"))
    if given.get("window"):
        left = given["window"] - 1
    if query_ends is None:
        pairs = document_pairs(query[-3], given["key"].shape[-3], causal, left, right).times(
            prod(query[:-3])
        )
    else:
        queries = lengths_of(query_ends)
        keys = lengths_of(query_ends if key_ends is None else key_ends)
        # only the number of tokens is known; no query sees more keys than the longest document has
        if queries is None or keys is None:
            whole = query[-3] * (given.get("longest_key") or query[-3])
            pairs = Pairs(whole, whole / 2 if causal else whole, whole, bound=True)
        else:
            documents = (
                document_pairs(*both, causal, left, right)
                for both in zip(queries, keys, strict=True)
            )
            pairs = sum(documents, Pairs(0, 0, 0))
    return _cost(given, pairs.times(query[-2]), backward)
