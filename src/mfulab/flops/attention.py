"""Cost of all kinds of attention, from their query-key pairs. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from mfulab.core.data import data
from mfulab.flops.cost import Cost, Pairs, dense_pairs, document_pairs, packed_pairs
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
    query = arguments["query"]
    key = arguments["key"]
    value = arguments["value"]
    needed_matmuls = executed_matmuls = 2
    if backward:
        for_query, for_key, for_value = arguments.get("needs_gradient") or (True,) * 3
        for_scores = for_query or for_key
        needed_matmuls = for_scores + for_query + for_key + for_value
        executed_matmuls = 5
    pair_flops = query.shape[-1] + value.shape[-1]  # per matmul: 2 × the mean of both widths

    def flops(count: float) -> int:
        return int(pair_flops * count * needed_matmuls)

    full = flops(pairs.full)
    padding = flops(pairs.padding)
    unfilled = 0
    # More keys than queries belong to a cache, where a key that no query sees is an empty slot.
    if key.shape[-2] > query.shape[-2]:
        unfilled = padding
    return Cost(
        flops=full,
        causal_flops=flops(pairs.attended),
        executed_flops=int(pair_flops * pairs.executed * executed_matmuls),
        attention_flops=full,
        rectangle_flops=flops(pairs.rectangle),
        padding_flops=padding,
        unfilled_flops=unfilled,
        bound=bool(pairs.bound),
    )


def sdpa_cost(arguments: dict[str, Any], backward: bool) -> Cost:
    """Cost of torch's `scaled_dot_product_attention`: [..., heads, tokens, width], with a mask or
    causal."""
    *batch, queries, _ = arguments["query"].shape
    keys = arguments["key"].shape[-2]
    mask = arguments.get("mask")
    known_pairs = arguments.get("pairs")
    if known_pairs:
        pairs = Pairs(*known_pairs)
    elif mask is None:
        pairs = dense_pairs(queries, keys, bool(arguments.get("is_causal")))
    else:
        pairs = mask_pairs(mask, queries, keys)
    return _cost(arguments, pairs.times(prod(batch)), backward)


def variable_cost(arguments: dict[str, Any], backward: bool) -> Cost:
    """Cost of kernels that take lengths and windows: [batch, tokens, heads, width], or packed [(1,)
    tokens, heads, width]."""
    *batch, tokens, heads, _ = arguments["query"].shape
    query_ends = arguments.get("query_ends")
    # Kinds of masks: 0 is none, 1 is causal from the upper left, 2 from the lower right.
    causal = bool(arguments.get("kind") or arguments.get("is_causal"))
    left = arguments.get("left")
    right = arguments.get("right")
    if arguments.get("window_sides"):
        left, right = arguments["window_sides"]
    if arguments.get("window"):
        left = arguments["window"] - 1
    if query_ends is None:
        pairs = document_pairs(tokens, arguments["key"].shape[-3], causal, left, right)
        pairs = pairs.times(prod(batch))
        return _cost(arguments, pairs.times(heads), backward)
    key_ends = arguments.get("key_ends")
    if key_ends is None:
        key_ends = query_ends
    queries = lengths_of(query_ends)
    keys = lengths_of(key_ends)
    if queries is None or keys is None:
        # only the number of tokens is known; no query sees more keys than the longest document has
        most = tokens * (arguments.get("longest_key") or tokens)
        attended = most / 2 if causal else most
        pairs = Pairs(most, attended, most, bound=True)
    else:
        pairs = packed_pairs(queries, keys, causal, left, right)
    return _cost(arguments, pairs.times(heads), backward)
