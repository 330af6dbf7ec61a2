"""MFU of real tokens alone: the part of MFU that padding takes, by hand."""

import pytest
import torch

import mfulab
from mfulab.models.huggingface import build

WIDTH, LAYERS, WORDS = 32, 2, 50


@pytest.fixture
def bert():
    return build(
        "BertForMaskedLM", vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
        intermediate_size=4 * WIDTH,
    )  # fmt: skip


def measured(model, steps, **batch):
    with mfulab.measure(model=model, quiet=True, ceiling_s=0.05) as window:
        for _ in range(steps):
            model(**batch).logits.sum().backward()
    return window


def test_two_thirds_of_padding_take_two_thirds_of_what_each_token_costs(bert):
    mask = torch.zeros(4, 96, dtype=torch.long)
    mask[:, :32] = 1
    window = measured(bert, 3, input_ids=torch.ones_like(mask), attention_mask=mask)
    token = LAYERS * (4 + 8) * 2 * WIDTH**2 + 2 * WIDTH**2 + 2 * WIDTH * WORDS
    pair = LAYERS * 4 * WIDTH
    share = (32 * token + 32**2 * pair) / (96 * token + 96**2 * pair)
    assert window.row["useful_mfu_percent"] == pytest.approx(window.row["mfu_percent"] * share)
    assert window.metrics()["useful_mfu"] == window.row["useful_mfu_percent"]


def test_a_batch_that_does_not_tell_has_no_useful_part(bert):
    assert measured(bert, 2, input_ids=torch.ones(2, 8, dtype=torch.long)).row["useful_mfu_percent"] is None
