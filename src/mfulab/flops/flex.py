"""Counts flex_attention on any device, with pairs from its own mask function. The function that all
callers end in is replaced. Without data, it becomes the attention operator made for counting; with
data, the call is counted as one operator."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as module
from torch.utils._python_dispatch import _disable_current_modes

from mfulab.flops import fused
from mfulab.flops.cost import Pairs, dense_pairs
from mfulab.flops.masks import documents_of, has_data, mask_pairs

# most query-key pairs for which a mask function is evaluated; beyond, only its blocks count
LARGEST_MASK = 2**28
Add = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], None]


@contextmanager
def flex_attention_seen(add: Add) -> Iterator[None]:
    """Passes each call of flex_attention to `add` while entered, and its backward pass when
    autograd reaches it."""
    original = module.flex_attention_hop

    def seen(
        query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        with _disable_current_modes():
            pairs = block_mask_pairs(query, key, rest[1])
        numbers = list(map(float, astuple(pairs)))
        if not has_data(query):
            output, log_sum = fused.attention(query, key, value, None, False, numbers)
            return output, log_sum, log_sum
        with _disable_current_modes(), torch.compiler.set_stance("default"):
            # On a GPU this is the fused kernel, as in the user's loop. On a CPU there is no
            # backward pass, and nothing to fuse.
            run: Callable[..., Any] = original
            if query.is_cuda:
                run = torch.compile(original, fullgraph=True)
            results = run(query, key, value, *rest, **options)
        add("flex_attention", results, (query, key, value, numbers), {})
        output = results[0]
        if output.requires_grad:
            operands = (query, key, value)
            needs = [tensor.requires_grad for tensor in operands]
            shapes = [tensor.detach() for tensor in operands]
            backward = (*shapes, numbers, needs)
            output.register_hook(lambda _: add("flex_attention_backward", shapes, backward, {}))
        return results

    with (
        patch.object(module, "flex_attention_hop", seen),
        patch.object(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
        patch.object(module, "_validate_device", lambda query, key, value: None),
    ):
        yield


def block_mask_pairs(query: Tensor, key: Tensor, block_mask: tuple[Any, ...]) -> Pairs:
    """Pairs of one head and sequence, averaged over those that the block mask distinguishes."""
    queries = query.shape[-2]
    keys = key.shape[-2]
    partial, _, full = block_mask[2:5]
    rows, columns, mask_function = block_mask[-3:]
    unmasked = dense_pairs(queries, keys, False)
    if rows >= queries and columns >= keys and mask_function is module.noop_mask:
        return unmasked
    in_blocks = None  # pairs in the blocks that are computed, if known
    if has_data(partial):
        blocks = partial.sum()
        if full is not None:
            blocks = blocks + full.sum()
        sequences = partial[..., 0].numel()
        in_blocks = min(float(blocks) / sequences * rows * columns, unmasked.executed)
    mask = _evaluated(block_mask, queries, keys, query)
    if mask is None:
        most = unmasked.executed if in_blocks is None else in_blocks
        return Pairs(most, most, most, unmasked.rectangle, bound=True)
    pairs = mask_pairs(mask, queries, keys)
    executed = pairs.full if in_blocks is None else in_blocks
    return replace(pairs, executed=executed, rectangle=unmasked.rectangle)


def block_mask_documents(block_mask: module.BlockMask) -> list[list[int]] | None:
    """Number of real tokens in each document, for each sequence that a block mask distinguishes.
    None if queries and keys are different tokens, if the mask has more than `LARGEST_MASK` pairs,
    or without data."""
    queries, keys = block_mask.seq_lengths
    mask = None
    if queries == keys:
        mask = _evaluated(block_mask.as_tuple(), queries, keys, block_mask.kv_num_blocks)
    if mask is None:
        return None
    return documents_of(mask)


def _evaluated(block_mask: tuple[Any, ...], queries: int, keys: int, like: Tensor) -> Tensor | None:
    """Returns the mask, [sequences, heads, queries, keys], on the device of `like` if that has data.
    None if it is too large, or depends on tensors without data."""
    if queries * keys > LARGEST_MASK:
        return None
    numbers = block_mask[2]
    mask_function = block_mask[-1]
    if mask_function is module.noop_mask:
        return _from_blocks(block_mask, queries, keys)
    batch, heads = numbers.shape[:2]
    device = "cpu"
    if has_data(like):
        device = like.device.type
    try:
        with torch.device("cpu"):
            return module.create_mask(mask_function, batch, heads, queries, keys, device)
    except Exception:  # a function of tensors without data
        return None


def _from_blocks(block_mask: tuple[Any, ...], queries: int, keys: int) -> Tensor | None:
    """Returns a mask without a function, which is its blocks: in each row, the first columns that
    are listed, as many as their number says. None without data."""
    numbers, block_indices, *of_full = block_mask[2:6]
    if not has_data(numbers):
        return None
    rows, columns = block_mask[-3:-1]
    across = -(-keys // columns)
    seen = torch.zeros(*numbers.shape, across, dtype=torch.int64, device=numbers.device)
    for number, indices in ((numbers, block_indices), of_full):
        if number is not None:
            listed = torch.arange(indices.shape[-1], device=indices.device) < number[..., None]
            seen = seen.scatter_reduce(-1, indices.long(), listed.long(), "amax")
    by_row = seen.bool().repeat_interleave(rows, -2)[..., :queries, :]
    return by_row.repeat_interleave(columns, -1)[..., :keys]
