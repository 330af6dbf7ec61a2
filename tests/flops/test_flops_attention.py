"""Attention in all forms: masks, packed documents, windows, lengths, blocks; by hand."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mfulab.flops.cost import dense_pairs, document_pairs
from mfulab.flops.counter import Operations, OperatorCounter
from mfulab.flops.fused import fused_operators
from mfulab.flops.layers import LayerTracker
from mfulab.flops.masks import mask_pairs
from mfulab.flops.operators import FORMULAS

HEADS, WIDTH = 2, 8
PAIR = 2 * 2 * HEADS * WIDTH
"""FLOPs of a pair of query and key in all heads: its score, and its part of the values."""

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def counted(step) -> Operations:
    with OperatorCounter(LayerTracker(nn.Identity()), memory=False) as counter:
        step()
    assert not counter.operations.uncounted
    return counter.operations


def sdpa(
    mask: torch.Tensor | None, tokens: int, device: str = "cpu", **options: bool
) -> Operations:
    query = torch.randn(1, HEADS, tokens, WIDTH, device=device, requires_grad=True)
    with fused_operators() if device == "meta" else nullcontext():
        return counted(
            lambda: (
                functional.scaled_dot_product_attention(query, query, query, mask, **options)
                .sum()
                .backward()
            )
        )


def packed_mask(documents: list[int], causal: bool) -> torch.Tensor:
    blocks = [torch.ones(length, length, dtype=torch.bool) for length in documents]
    mask = torch.block_diag(*blocks).bool()
    return mask.tril() if causal else mask


def test_eight_documents_in_a_row_cost_what_eight_rows_do():
    forward = sdpa(packed_mask([32] * 8, causal=False), 256).sum("forward")
    assert forward.flops == forward.causal_flops == 8 * 32**2 * PAIR
    found = forward.executed_flops
    assert found == 256**2 * PAIR, "a mask given as a tensor spares the kernel nothing"


@settings(max_examples=40, deadline=None)
@given(lengths, st.booleans(), st.booleans())
def test_packed_documents_are_the_sum_of_the_separate_ones(documents, causal, added):
    """The same by a mask, and by each document on its own; a mask that is added to the scores is
    one too."""
    assume(max(documents) > 1)  # a query that sees its one key is causal, and is not
    mask = packed_mask(documents, causal)
    if added:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    packed = sdpa(mask, sum(documents))
    separate = [sdpa(None, length, is_causal=causal) for length in documents]
    for direction in ("forward", "backward"):
        for name in ("flops", "causal_flops"):
            found = getattr(packed.sum(direction), name)
            assert found == sum(getattr(operations.sum(direction), name) for operations in separate)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(-1, 20), st.integers(-1, 20))
def test_windows_by_looking_at_every_pair(queries, keys, left, right):
    pairs = document_pairs(queries, keys, False, left, right)
    query, key = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)[None, :]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        seen &= key >= query - left
    if right >= 0:
        seen &= key <= query + right
    triangle = right == 0 and (left < 0 or left + 1 >= keys)
    assert pairs.attended == int(seen.sum()) - (min(queries, keys) / 2 if triangle else 0)
    assert pairs.full <= queries * keys


def test_a_sliding_window_is_as_wide_as_it_is():
    tokens, window = 64, 16
    place = torch.arange(tokens)
    mask = (place[:, None] >= place[None, :]) & (place[:, None] - place[None, :] < window)
    forward = sdpa(mask, tokens).sum("forward")
    assert forward.flops == tokens * window * PAIR
    assert forward.causal_flops == (tokens * window - window * (window - 1) // 2) * PAIR
    assert document_pairs(tokens, tokens, True, window - 1, 0).full == tokens * window


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_alone_changes_no_full_count(side, causal):
    """It is the useful part of MFU that leaves padding out."""
    tokens, real = 16, 10
    mask = torch.ones(tokens, tokens, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    mask[:, slice(real, None) if side == "right" else slice(0, tokens - real)] = False
    assert mask_pairs(mask, tokens, tokens).full == tokens**2
    # What is left of a causal mask is a smaller triangle, or is none.
    triangle = causal and side == "left"
    assert mask_pairs(mask, tokens, tokens).attended == mask.sum() - triangle * real / 2


def test_masks_differ_by_sequence_and_broadcast_over_heads():
    mask = torch.stack([packed_mask([4, 4], False), packed_mask([8], False)])[:, None]
    pairs = mask_pairs(mask, 8, 8).times(2 * HEADS)
    assert pairs.full == HEADS * (2 * 16 + 64)
    keys_alone = torch.tensor([True] * 6 + [False] * 2)
    assert mask_pairs(keys_alone[None], 8, 8).attended == 48


def test_a_mask_without_data_counts_in_full_and_says_that_it_is_a_bound():
    mask = packed_mask([8, 8], False).to("meta")
    total = sdpa(mask, 16, device="meta").sum("forward")
    assert (total.bounds, total.flops) == (1, 16 * 16 * PAIR)
    assert sdpa(None, 16, is_causal=True).sum("forward").bounds == 0


def test_a_mask_that_changes_is_looked_at_again():
    mask = packed_mask([8, 8], False)
    assert mask_pairs(mask, 16, 16).full == 128
    mask.fill_(True)
    assert mask_pairs(mask, 16, 16).full == 256


@pytest.mark.parametrize("dimensions", [2, 3, 4, 5])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_queries_of_any_number_of_dimensions(dimensions, device):
    shape = (2, 3, HEADS, 16, WIDTH)[5 - dimensions :]
    query = torch.randn(shape, device=device, requires_grad=True)

    def step():
        functional.scaled_dot_product_attention(query, query, query).sum().backward()

    with fused_operators() if device == "meta" else nullcontext():
        total = counted(step)
    alike = query.numel() // (16 * WIDTH)
    assert total.sum("forward").flops == alike * 4 * 16 * 16 * WIDTH
    assert total.sum("backward").flops == 2 * total.sum("forward").flops


def documents_of(ends: list[int]) -> torch.Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32).cumsum(0).int()


@settings(max_examples=30, deadline=None)
@given(lengths, st.booleans())
def test_kernels_that_take_lengths_cost_the_sum_of_their_documents(documents, causal):
    ends, tokens = documents_of(documents), sum(documents)
    packed = torch.empty(tokens, HEADS, WIDTH)
    full = sum(length**2 for length in documents) * PAIR
    longest = max(documents)
    both = (ends, ends, longest, longest)
    calls = {
        "aten::_flash_attention_forward": (*both, 0.0, causal, False),
        "torch_attn::_varlen_attn": (*both, causal, None, [-1, 0 if causal else -1]),
        "flash_attn::_flash_attn_varlen_forward": (*both, 0.0, 1.0, causal, -1, -1),
    }
    for name, rest in calls.items():
        cost = FORMULAS[name](packed, packed, packed, *rest, out=None)
        assert (cost.flops, cost.causal_flops) == (full, full // 2 if causal else full)
        assert not cost.bound
    shapes = (packed, packed, packed)
    backward = FORMULAS["aten::_flash_attention_backward"]
    cost = backward(packed, *shapes, packed, None, *both, 0.0, causal, None, None, out=None)
    assert (cost.flops, cost.executed_flops) == (2 * full, 2.5 * full)
    unknown = ends.to("meta")
    cost = FORMULAS["aten::_flash_attention_forward"](
        *shapes, unknown, unknown, longest, longest, 0.0, causal, False, out=None
    )
    assert cost.bound
    assert full <= cost.flops == tokens * longest * PAIR


def test_a_chunk_of_a_prompt_beside_tokens_that_are_decoded():
    """One step of a server: 16 tokens of a prompt whose first 32 are in the cache, and three
    sequences' next token."""
    width, words, new, cached = HEADS * WIDTH, 50, [16, 1, 1, 1], [32, 5, 9, 20]
    keys = [one + other for one, other in zip(new, cached, strict=True)]
    enter = nn.Linear(width, 3 * width)
    leave = nn.Linear(width, width)
    head = nn.Linear(width, words)
    caches = [torch.randn(2, HEADS, length, WIDTH) for length in cached]

    def attend(entered, cache):
        query, *rest = entered.view(-1, 3, HEADS, WIDTH).permute(1, 2, 0, 3)
        key, value = (torch.cat(pair, dim=1) for pair in zip(cache, rest, strict=True))
        seen = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril(
            key.shape[1] - query.shape[1]
        )
        return functional.scaled_dot_product_attention(query[None], key[None], value[None], seen)[
            0
        ].transpose(0, 1)

    def step():
        entered = enter(torch.randn(sum(new), width)).split(new)
        attended = [
            attend(one, cache).flatten(1) for one, cache in zip(entered, caches, strict=True)
        ]
        last = torch.tensor(new).cumsum(0) - 1
        head(leave(torch.cat(attended))[last])

    with torch.no_grad():
        found = counted(step).sum("forward")
    pairs = sum(one * all_of_it for one, all_of_it in zip(new, keys, strict=True))
    by_hand = 2 * sum(new) * 4 * width**2 + pairs * PAIR + 2 * len(new) * width * words
    assert found.flops == by_hand
    packed, cache = torch.empty(sum(new), HEADS, WIDTH), torch.empty(sum(keys), HEADS, WIDTH)
    ends = documents_of(new), documents_of(keys)
    by_kernel = FORMULAS["torch_attn::_varlen_attn"](
        packed, cache, cache, *ends, 16, 48, True, None, [-1, 0], out=None
    )
    assert by_kernel.flops == pairs * PAIR


def test_flash_attentions_own_layout_has_tokens_before_heads():
    query, window = torch.empty(3, 64, HEADS, WIDTH), 16
    cost = FORMULAS["flash_attn::_flash_attn_forward"](
        query, query, query, 0.0, 1.0, True, window - 1, 0, out=None
    )
    assert cost.flops == 3 * 64 * window * PAIR
    assert cost.causal_flops == 3 * (64 * window - window * (window - 1) // 2) * PAIR
    grouped = torch.empty(3, 64, 1, WIDTH)
    cost = FORMULAS["aten::_flash_attention_forward"](
        query, grouped, grouped, None, None, 64, 64, 0.0, True, False, out=None
    )
    assert (cost.flops, cost.causal_flops) == (3 * 64 * 64 * PAIR, 3 * 64 * 64 * PAIR // 2)


def test_the_efficient_kernel_has_a_number_for_its_kind_of_mask():
    query = torch.empty(1, 32, HEADS, WIDTH)
    for kind, part in ((0, 1), (1, 2), (2, 2)):
        cost = FORMULAS["aten::_efficient_attention_forward"](
            query, query, query, None, None, None, None, None, 0.0, kind, out=None
        )
        assert cost.causal_flops == 32 * 32 * PAIR // part


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention_is_counted_by_its_mask_and_executed_by_its_blocks(device, compiled):
    tokens, block = 256, 64
    documents = torch.arange(tokens) // 64

    def of_document(batch, head, query, key):
        return (query >= key) & (documents[query] == documents[key])

    mask = create_block_mask(
        of_document, None, None, tokens, tokens, device="cpu", BLOCK_SIZE=block
    )
    query = torch.randn(1, HEADS, tokens, WIDTH, device=device, requires_grad=device == "meta")
    function = torch.compile(flex_attention, backend="eager") if compiled else flex_attention

    def step():
        output = function(query, query, query, block_mask=mask.to(device))
        if output.requires_grad:
            output.sum().backward()

    operations = counted(step)
    forward = operations.sum("forward")
    assert forward.flops == 4 * 64**2 * PAIR
    assert forward.causal_flops == forward.flops // 2
    # Without data the blocks are not known: their number is taken from the documents.
    assert forward.executed_flops == 4 * block**2 * PAIR
    if device == "meta":
        assert operations.sum("backward").flops == 2 * forward.flops


def test_flex_attention_without_a_mask_and_with_a_function_of_unknown_values():
    query = torch.randn(2, HEADS, 32, WIDTH, device="meta", requires_grad=True)
    operations = counted(lambda: flex_attention(query, query, query).sum().backward())
    assert operations.sum("forward").flops == 2 * 32 * 32 * PAIR
    assert operations.sum("backward").flops == 2 * operations.sum("forward").flops
    documents = torch.zeros(32, dtype=torch.long, device="meta")
    mask = create_block_mask(
        lambda b, h, q, k: documents[q] == documents[k], None, None, 32, 32, device="meta"
    )
    assert (
        counted(lambda: flex_attention(query, query, query, block_mask=mask)).sum("forward").bounds
        == 1
    )


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_cost_the_sum_of_their_sequences(layout):
    layer = nn.Linear(16, 16)
    sequences = [torch.randn(length, 16) for length in (3, 5)]
    operations = counted(lambda: layer(torch.nested.nested_tensor(sequences, layout=layout)))
    assert operations.sum("forward").flops == 2 * 8 * 16 * 16
    if layout != torch.jagged:
        return

    def attend():
        nested = torch.nested.nested_tensor(sequences, layout=layout)
        heads = layer(nested).unflatten(-1, [HEADS, WIDTH]).transpose(1, 2)
        output = functional.scaled_dot_product_attention(heads, heads, heads)
        output.transpose(1, 2).flatten(-2).values().sum().backward()

    operations = counted(attend)
    attention = (3**2 + 5**2) * PAIR
    linear = 2 * 8 * 16 * 16
    assert operations.sum("forward").flops == linear + attention
    assert operations.sum("backward").flops == linear + 2 * attention
    assert operations.sum("recomputed").flops == 0


@given(st.integers(1, 50), st.integers(1, 50))
def test_causal_is_never_more_than_full_and_more_than_nothing(queries, keys):
    pairs = dense_pairs(queries, keys, True)
    assert 0 < pairs.attended <= pairs.full == pairs.executed == queries * keys
