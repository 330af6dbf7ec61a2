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
KEYWORDS = dict[str, str]()
for _name, _keywords in _TABLE["keywords"].items():
    KEYWORDS |= dict.fromkeys(_keywords.split(), _name)


def bind(signature: str, args: Sequence[object], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Maps an operator's arguments to this module's names."""
    arguments = dict(zip(signature.split(), args, strict=False))
    for name, value in kwargs.items():
        arguments[KEYWORDS.get(name, name)] = value
    return arguments


def _cost(arguments: dict[str, Any], pairs: Pairs, backward: bool) -> Cost:
    """Cost of attention's matmuls over these pairs. Forward has two. Backward needs one per
    gradient, and one for the scores' gradient; the kernel executes five."""
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    needed_matmuls = executed_matmuls = 2
    if backward:
        for_query, for_key, for_value = arguments.get("needs_gradient") or (True,) * 3
        needed_matmuls = (for_query or for_key) + for_query + for_key + for_value
        executed_matmuls = 5
    pair_flops = query.shape[-1] + value.shape[-1]  # per matmul: 2 × the mean of both widths

    def flops(count: float) -> int:
        return int(pair_flops * count * needed_matmuls)

    full = flops(pairs.full)
    padding = flops(pairs.padding)
    # More keys than queries belong to a cache, where a key that no query sees is an empty slot.
    is_cache = key.shape[-2] > query.shape[-2]
    return Cost(
        flops=full,
        causal_flops=flops(pairs.attended),
        executed_flops=int(pair_flops * pairs.executed * executed_matmuls),
        attention_flops=full,
        rectangle_flops=flops(pairs.rectangle),
        padding_flops=padding,
        unfilled_flops=padding if is_cache else 0,
        bound=bool(pairs.bound),
    )


def sdpa_cost(arguments: dict[str, Any], backward: bool) -> Cost:
    """Cost of torch's `scaled_dot_product_attention`: [..., heads, tokens, width], with a mask or
    causal."""
    query = arguments["query"].shape
    mask = arguments.get("mask")
    sides = query[-2], arguments["key"].shape[-2]
    known_pairs = arguments.get("pairs")
    if known_pairs:
        pairs = Pairs(*known_pairs)
    elif mask is None:
        pairs = dense_pairs(*sides, bool(arguments.get("is_causal")))
    else:
        pairs = mask_pairs(mask, *sides)
    return _cost(arguments, pairs.times(prod(query[:-2])), backward)


def variable_cost(arguments: dict[str, Any], backward: bool) -> Cost:
    """Cost of kernels that take lengths and windows: [batch, tokens, heads, width], or packed [(1,)
    tokens, heads, width]."""
    query = arguments["query"].shape
    query_ends = arguments.get("query_ends")
    key_ends = arguments.get("key_ends")
    # Kinds of masks: 0 is none, 1 is causal from the upper left, 2 from the lower right.
    causal = bool(arguments.get("kind") or arguments.get("is_causal"))
    left, right = arguments.get("window_sides") or (arguments.get("left"), arguments.get("right"))
    if arguments.get("window"):
        left = arguments["window"] - 1
    tokens, heads = query[-3], query[-2]
    if query_ends is None:
        pairs = document_pairs(tokens, arguments["key"].shape[-3], causal, left, right)
        pairs = pairs.times(prod(query[:-3]))
        return _cost(arguments, pairs.times(heads), backward)
    queries = lengths_of(query_ends)
    keys = lengths_of(query_ends if key_ends is None else key_ends)
    if queries is None or keys is None:
        # only the number of tokens is known; no query sees more keys than the longest document has
        most = tokens * (arguments.get("longest_key") or tokens)
        pairs = Pairs(most, most / 2 if causal else most, most, bound=True)
    else:
        pairs = Pairs(0, 0, 0)
        for query_count, key_count in zip(queries, keys, strict=True):
            pairs += document_pairs(query_count, key_count, causal, left, right)
    return _cost(arguments, pairs.times(heads), backward)
