"""MFU of real tokens alone: the part of MFU that padding takes, by hand."""

import pytest
import torch

import mfulab
from mfulab.loop.interactive.known_costs import Filling
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
    assert (
        measured(bert, 2, input_ids=torch.ones(2, 8, dtype=torch.long)).row["useful_mfu_percent"]
        is None
    )


class Cached(torch.nn.Module):
    """One layer of attention over a preallocated cache of 32 places, a boolean row of the causal
    mask at `places`."""

    WIDTH, PLACES = 16, 32

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(self.WIDTH, 3 * self.WIDTH, bias=False)
        self.register_buffer("cache", torch.zeros(2, 1, 2, self.PLACES, self.WIDTH // 2))
        self.register_buffer("mask", torch.ones(self.PLACES, self.PLACES, dtype=torch.bool).tril())

    def forward(self, x, places):
        query, *new = self.qkv(x).view(1, -1, 3, 2, self.WIDTH // 2).permute(2, 0, 3, 1, 4)
        for kept, each in zip(self.cache, new, strict=True):
            kept.index_copy_(2, places, each)
        mask = self.mask[places][None, None]
        return torch.nn.functional.scaled_dot_product_attention(query, *self.cache, attn_mask=mask)


@pytest.mark.parametrize("with_prompts", [True, False])
def test_a_static_cache_costs_all_its_places_and_serves_the_filled_ones(with_prompts):
    model = Cached().eval()
    with torch.no_grad(), mfulab.measure(model, quiet=True, ceiling_s=0.05) as window:
        for _ in range(6):
            if with_prompts:
                model(torch.randn(1, 4, 16), torch.arange(4))
            for place in range(4, 11):
                model(torch.randn(1, 1, 16), torch.tensor([place]))
            window.step()
    prompt, tokens = 4 * with_prompts, 7
    linear = 2 * 16 * 48 * (prompt + tokens)
    assert window.row["flops"] == linear + 4 * 16 * 32 * (prompt + tokens)
    if with_prompts:  # without them nothing says where a generation begins
        served = linear + 4 * 16 * (4 * prompt + sum(range(5, 12)))
        share = window.row["useful_mfu_percent"] / window.row["mfu_percent"]
        assert share == pytest.approx(served / window.row["flops"])
    else:
        assert 0 < window.row["useful_mfu_percent"] < window.row["mfu_percent"]


def test_useful_flops_of_a_growing_cache_lie_straight_between_samples():
    filling = Filling()
    for place in (*range(1, 7), 1, 2):
        filling.calls[place] += 1
        if place == 1 or filling.wants(place):
            filling.useful[place] = 100.0 + 10 * place
    assert sorted(filling.useful) == [1, 2, 4]
    assert filling.mean == pytest.approx(100 + 10 * (sum(range(1, 7)) + 3) / 8)


def test_modules_that_did_not_run_are_named():
    class Towers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.vision, self.text, self.late = (torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x, late=False):
            return self.late(x) if late else self.text(x)

    model = Towers()
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for number in range(6):
            model(torch.randn(2, 4), late=number % 2 == 1).sum().backward()
            window.step()
    assert window.readings["flops"].source.endswith("did not run and cost nothing: vision")
    with pytest.warns(UserWarning, match="did not run and cost nothing: late, vision"):
        assert mfulab.flops_of(model, torch.randn(2, 4), backward=False) == 2 * 2 * 4 * 4
