"""Real tokens of a batch and the FLOPs that served them: padded, packed and separate batches."""

import copy
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import mfulab
from mfulab.flops.count import count
from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.flops.useful import real_tokens, useful_flops
from mfulab.flops.values import KnownValues
from mfulab.models.huggingface import build as build_huggingface

WIDTH, LAYERS, WORDS = 32, 2, 50
documents = st.lists(st.integers(2, 9), min_size=1, max_size=4)


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def bert(request):
    torch.manual_seed(0)
    return build_huggingface(
        "BertForMaskedLM", request.param, vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=2, intermediate_size=4 * WIDTH,
    )  # fmt: skip


def counted(model, **batch):
    with OperatorCounter(LayerTracker(model), memory=False) as counter:
        model(**batch).logits.sum().backward()
    return counter.operations


def padded(lengths: list[int], width: int) -> dict[str, torch.Tensor]:
    mask = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    return {"input_ids": torch.ones_like(mask), "attention_mask": mask}


@settings(max_examples=5, deadline=None)
@given(documents, st.integers(0, 5))
def test_the_useful_part_of_a_padded_batch_is_what_its_documents_cost_alone(bert, lengths, padding):
    batch = padded(lengths, max(lengths) + padding)
    operations = counted(bert, **batch)
    real = real_tokens((), batch)
    alone = sum(
        counted(bert, input_ids=torch.ones(1, length, dtype=torch.long)).model_flops
        for length in lengths
    )
    assert useful_flops(operations, real) == pytest.approx(alone, rel=1e-12)
    assert operations.model_flops >= alone
    without = [length == batch["input_ids"].shape[1] for length in lengths]
    assert (operations.model_flops == alone) == all(without)


@pytest.mark.parametrize("earlier", [[6, 3], [2, 6], [6, 1, 5]])
def test_a_mask_of_an_earlier_batch_is_forgotten_by_one_without(bert, earlier):
    """Both have as many tokens, so that their attention has the same sides."""
    counted(bert, **padded(earlier, 6))
    batch = padded([6], 6)
    operations = counted(bert, **batch)
    assert useful_flops(operations, real_tokens((), batch)) == operations.model_flops
    again = counted(bert, **padded(earlier, 6))
    assert again.model_flops == counted(bert, **padded(earlier, 6)).model_flops


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_count_finds_the_mask_that_a_model_makes_for_itself(bert, device):
    """In a table, too: a wrapper around a published model pads each row to three times its
    length."""

    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = bert

        def forward(self, tokens):
            mask = torch.arange(tokens.shape[1], device=tokens.device) < tokens.shape[1] // 3
            return self.model(
                input_ids=tokens, attention_mask=mask.long().expand(tokens.shape)
            ).logits

    model = copy.deepcopy(Wrapper()).to(device)
    with torch.device(device), KnownValues() if device == "meta" else nullcontext():
        tokens = torch.ones(2, 24, dtype=torch.long)
        found = count(model, lambda: model(tokens).sum(), fused=device == "meta")
    alone = 2 * counted(bert, input_ids=torch.ones(1, 8, dtype=torch.long)).model_flops
    assert found.useful_percent == pytest.approx(100 * alone / found.operations.model_flops)
    assert count(torch.nn.Linear(2, 2), lambda: torch.zeros(())).useful_percent is None


def test_chunks_of_a_state_space_model_are_no_pairs_of_tokens():
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "state_size": 8,
        "head_dim": 32,
    }
    model = build_huggingface("Mamba2ForCausalLM", **sizes, num_heads=2, n_groups=1, chunk_size=16)
    batch = padded([32, 64], 128)
    operations = counted(model, **batch)
    alone = sum(
        counted(model, input_ids=torch.ones(1, length, dtype=torch.long)).model_flops
        for length in (32, 64)
    )
    # All but the convolution's own padding, and the states that are passed from chunk to chunk.
    assert useful_flops(operations, real_tokens((), batch)) == pytest.approx(alone, rel=0.02)


def test_two_thirds_of_padding():
    model = build_huggingface(
        "BertForMaskedLM", vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
        intermediate_size=4 * WIDTH,
    )  # fmt: skip
    batch = padded([32, 32, 32, 32], 96)
    operations = counted(model, **batch)
    # A layer's four projections and two matrices of the MLP; the head's two. Backward twice.
    token = LAYERS * (4 + 8) * 2 * WIDTH**2 + 2 * WIDTH**2 + 2 * WIDTH * WORDS
    pair = LAYERS * 4 * WIDTH
    assert operations.model_flops == 3 * 4 * (96 * token + 96**2 * pair)
    found = useful_flops(operations, real_tokens((), batch))
    assert found == pytest.approx(3 * 4 * (32 * token + 32**2 * pair))


@settings(max_examples=4, deadline=None)
@given(documents)
def test_packed_rows_hold_the_sum_of_their_documents(lengths):
    model = build_huggingface(
        "LlamaForCausalLM", vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48,
    )  # fmt: skip
    model.set_attn_implementation("sdpa")  # which makes a mask of the positions
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    ids = torch.ones_like(positions)
    operations = counted(model, input_ids=ids, position_ids=positions)
    alone = sum(
        counted(model, input_ids=torch.ones(1, length, dtype=torch.long)).model_flops
        for length in lengths
    )
    # Rotary angles are made by a product for all rows at once, which a document alone has too.
    assert operations.model_flops == pytest.approx(alone, rel=0.01)
    real = real_tokens((ids,), {"position_ids": positions})
    if len(lengths) > 1:
        assert real.lengths == tuple(lengths)
        assert useful_flops(operations, real) == pytest.approx(operations.model_flops, rel=1e-9)


class Flexible(torch.nn.Module):
    """A layer around flex_attention, which is given its block mask."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        query, key, value = self.enter(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        return self.leave(
            flex_attention(query, key, value, block_mask=mask).transpose(1, 2).flatten(2)
        )


def block_mask(rows: list[list[int]], width: int, window: int, causal: bool) -> BlockMask:
    """Documents packed into each row, padding after them."""
    numbers = torch.full((len(rows), width), -1)
    for row, lengths in zip(numbers, rows, strict=True):
        row[: sum(lengths)] = torch.repeat_interleave(torch.tensor(lengths))

    def sees(batch, head, query, key):
        own = (numbers[batch, query] == numbers[batch, key]) & (numbers[batch, key] >= 0)
        near = (
            (query - key).abs() < window if not causal else (query >= key) & (query - key < window)
        )
        return own & near

    return create_block_mask(sees, len(rows), None, width, width, device="cpu", BLOCK_SIZE=16)


@settings(max_examples=4, deadline=None)
@given(
    st.lists(documents, min_size=1, max_size=2),
    st.integers(0, 5),
    st.integers(2, 50),
    st.booleans(),
)
def test_the_useful_part_of_a_block_mask_is_its_documents_cost(rows, padding, window, causal):
    width = max(map(sum, rows)) + padding
    with torch.device("meta"):
        model = Flexible()
    tokens = torch.ones(len(rows), width, WIDTH, device="meta")
    found = count(
        model, lambda: model(tokens, block_mask(rows, width, window, causal).to("meta")).sum()
    )
    lengths_of_all, alone = [length for row in rows for length in row], 0
    for length, times in Counter(lengths_of_all).items():
        document = torch.ones(1, length, WIDTH, device="meta")
        mask = block_mask([[length]], length, window, causal)
        with OperatorCounter(LayerTracker(model), memory=False) as counter:
            model(document, mask.to("meta")).sum().backward()
        alone += times * counter.operations.model_flops
    assert found.real.lengths == tuple(lengths_of_all)
    assert found.useful_percent == pytest.approx(100 * alone / found.operations.model_flops)
    assert (found.useful_percent < 100) == any(sum(row) < width for row in rows)


def test_a_block_mask_without_a_function_is_its_blocks():
    """Two documents of one block each, and a third block that is padding; no row lists it."""
    number, place = torch.tensor([[[1, 1, 0]]]), torch.tensor([[[[0, 1, 2], [1, 0, 2], [2, 0, 1]]]])
    mask = BlockMask.from_kv_blocks(number, place, BLOCK_SIZE=16)
    query = torch.randn(1, 2, 48, 8)
    real = real_tokens((torch.ones(2, 48, 4),), {"masks": {"all": mask}})
    assert (real.lengths, real.source) == ((16,) * 4, "block_mask")
    with OperatorCounter(LayerTracker(torch.nn.Identity()), memory=False) as counter:
        flex_attention(query, query, query, block_mask=mask)
    whole = counter.operations.sum("forward")
    assert whole.flops - whole.padding_flops == whole.executed_flops == 2 * 16**2 * 4 * 2 * 8
    nothing_left_out = block_mask([[6], [6]], 6, 9, False)
    labels = torch.tensor([[1, 1, 1, -100, -100, -100], [1] * 6])
    assert real_tokens((IDS, nothing_left_out), {"labels": labels}).lengths == (3, 6)
    assert real_tokens((IDS, nothing_left_out), {}).lengths == (6, 6)
    assert real_tokens((torch.ones(3, 6), nothing_left_out), {}) is None, "it has two rows"
    assert real_tokens((torch.ones(2, 9), nothing_left_out), {}) is None


IDS = torch.ones(2, 6, dtype=torch.long)


@pytest.mark.parametrize(
    ("keywords", "lengths", "source"),
    [
        ({"attention_mask": torch.tensor([[1] * 4 + [0] * 2, [1] * 6])}, (4, 6), "attention_mask"),
        (
            {"attention_mask": torch.tensor([[1, 1, 2, 2, 2, 0], [1] * 6])},
            (2, 3, 6),
            "attention_mask",
        ),
        ({"attention_mask": torch.ones(2, 6, dtype=torch.bool)}, (6, 6), "attention_mask"),
        (
            {"key_padding_mask": torch.tensor([[False] * 5 + [True], [False] * 6])},
            (5, 6),
            "key_padding_mask",
        ),
        ({"cu_seqlens": torch.tensor([0, 2, 6, 12])}, (2, 4, 6), "cu_seqlens"),
        (
            {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]])},
            (3, 3, 6),
            "position_ids",
        ),
        ({"labels": torch.tensor([[-100, 4, 5, -100, -100, -100], [1] * 6])}, (3, 6), "labels"),
        (
            {
                "attention_mask": IDS,
                "labels": torch.tensor([[-100, 4, -100, 5, -100, -100], [-100] * 5 + [7]]),
            },
            (6, 6),
            "attention_mask",
        ),
    ],
)
def test_what_says_where_documents_end(keywords, lengths, source):
    real = real_tokens((IDS,), keywords)
    assert (real.lengths, real.rows, real.width, real.source) == (lengths, 2, 6, source)
    assert real_tokens(({"input_ids": IDS, **keywords},), {}) == real
    assert 0 < real.pair_fraction <= real.fraction <= 1


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"labels": torch.tensor([[-100, 4, -100, 5, -100, -100]] * 2)},
        {"attention_mask": torch.ones(2, 9)},
        {"attention_mask": torch.ones(2, 6, device="meta")},
        {"other": IDS},
    ],
)
def test_what_says_nothing_is_not_guessed(keywords):
    assert real_tokens((IDS,), keywords) is None
    assert real_tokens((), keywords) is None


@pytest.mark.slow
def test_a_loop_with_a_block_mask_has_its_useful_part():
    model, tokens, mask = Flexible(), torch.ones(1, 64, WIDTH), block_mask([[16, 8]], 64, 64, False)
    with torch.no_grad(), mfulab.measure(model, quiet=True, ceiling_s=0.05) as window:
        for _ in range(3):
            model(tokens, mask)
            window.step()
    row = window.row
    pairs, token = 4 * WIDTH, 2 * 4 * WIDTH**2
    # The padding behind the last document is counted with it, as any padding is.
    whole = 64 * token + (16**2 + 48**2) * pairs
    assert row["flops"] == whole
    useful = 24 * token + (16**2 + 8**2) * pairs
    assert row["useful_mfu_percent"] / row["mfu_percent"] == pytest.approx(useful / whole)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_empty_places_of_a_static_cache_are_of_no_use(device):
    """Two queries at places 5 and 6 of a cache of 16, heads of 4: seven keys are there."""
    with torch.device(device), KnownValues() if device == "meta" else nullcontext():
        query, cache = torch.ones(1, 2, 2, 4), torch.ones(1, 2, 16, 4)
        mask = torch.arange(16) <= torch.arange(5, 7)[:, None]
        attend = torch.nn.functional.scaled_dot_product_attention
        found = count(
            torch.nn.Identity(),
            lambda: attend(query, cache, cache, mask).sum(),
            fused=device == "meta",
        )
    assert found.operations.model_flops == 4 * 2 * 4 * 2 * 16
    assert found.useful_percent == pytest.approx(100 * 7 / 16)
