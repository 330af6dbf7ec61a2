"""Invariants of any count: additive over layers, linear in the batch, alike for each format."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slow import examples
from torch import nn

from mfulab.flops.count import Count, count
from mfulab.flops.counter import layer_rows
from mfulab.models.huggingface import build as build_huggingface

small = st.integers(1, 6)
FIELDS = ("flops", "causal_flops", "executed_flops", "other_flops", "elements", "other_elements")


@st.composite
def convolutional_networks(draw):
    """A stack of grouped, transposed, plain convolutions, norms and activations, and a shape large
    enough for norms."""
    groups = draw(st.sampled_from([1, 2, 4]))
    channels = [groups * draw(small) for _ in range(draw(st.integers(2, 5)))]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        kind = draw(st.sampled_from([nn.Conv2d, nn.ConvTranspose2d]))
        layers.append(
            kind(before, after, 3, padding=1, groups=groups, stride=draw(st.sampled_from([1, 2])))
        )
        layers.append(
            draw(st.sampled_from([nn.ReLU(), nn.GELU(), nn.BatchNorm2d(after), nn.Identity()]))
        )
    return nn.Sequential(*layers).to("meta"), (
        channels[0],
        draw(st.integers(20, 32)),
        draw(st.integers(20, 32)),
    )


def of(
    model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, leaf: bool = True
) -> Count:
    inputs = torch.randn(shape, device="meta", dtype=dtype, requires_grad=leaf)
    model.zero_grad()  # adding to older gradients is arithmetic too
    # A gradient for every element, as the next layer would give it.
    return count(model, lambda: (model(inputs) * 1).sum())


@settings(max_examples=examples(10, 30), deadline=None)
@given(convolutional_networks(), small)
def test_additive_over_layers(network, batch):
    model, shape = network
    whole = of(model, (batch, *shape)).operations
    assert not whole.uncounted
    parts = {"forward": 0, "backward": 0}
    x = torch.randn(batch, *shape, device="meta")
    for layer in model:
        part = of(layer, tuple(x.shape)).operations
        for direction in parts:
            parts[direction] += part.sum(direction).flops
        x = layer(x)
    assert parts == {direction: whole.sum(direction).flops for direction in parts}


@settings(max_examples=examples(10, 30), deadline=None)
@given(convolutional_networks(), small)
def test_what_each_layer_is_given_adds_up_to_the_whole(network, batch):
    model, shape = network
    operations = of(model, (batch, *shape)).operations
    rows = layer_rows(model, operations)
    own = [row for row in rows if row["layer"]]
    for direction in ("forward", "backward"):
        assert rows[0][f"{direction}_flops"] == operations.sum(direction).flops
        found = sum(int(str(row[f"{direction}_flops"])) for row in own)
        assert found == operations.sum(direction).flops


@settings(max_examples=examples(8, 20), deadline=None)
@given(convolutional_networks(), st.integers(2, 5))
def test_linear_in_the_batch(network, factor):
    model, shape = network
    one, many = of(model, (1, *shape)).operations, of(model, (factor, *shape)).operations
    for direction in ("forward", "backward"):
        assert many.sum(direction).flops == factor * one.sum(direction).flops


@settings(max_examples=examples(6, 15), deadline=None)
@given(convolutional_networks(), st.sampled_from([torch.float16, torch.bfloat16, torch.float64]))
def test_independent_of_the_number_format(network, dtype):
    model, shape = network
    reference = of(model, (2, *shape)).operations
    other = of(model.to(dtype), (2, *shape), dtype).operations
    for direction in ("forward", "backward"):
        found = [getattr(reference.sum(direction), name) for name in FIELDS]
        assert found == [getattr(other.sum(direction), name) for name in FIELDS]


@settings(max_examples=examples(3, 10), deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    small,
    st.integers(2, 9),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_eager_and_fused_attention_cost_the_same(heads, batch, tokens, dtype):
    """BERT, whose eager attention needs no mask; its causal sisters read one from data, which the
    meta device lacks."""
    totals = []
    for attention in ("eager", "sdpa"):
        with torch.device("meta"):
            model = build_huggingface(
                "BertForMaskedLM", attention, vocab_size=50, hidden_size=8 * heads, num_hidden_layers=2,
                num_attention_heads=heads, intermediate_size=32, attention_probs_dropout_prob=0.0,
            ).to(dtype)  # fmt: skip
            ids = torch.zeros(batch, tokens, dtype=torch.long)
        operations = count(model, lambda model=model, ids=ids: model(ids).logits.sum()).operations
        assert not operations.uncounted
        totals.append([operations.sum(direction).flops for direction in ("forward", "backward")])
    assert totals[0] == totals[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mixture_of_experts_counts_the_active_experts_in_every_format(dtype):
    def flops(experts: int, active: int, dtype: torch.dtype) -> int:
        with torch.device("meta"):
            model = build_huggingface(
                "MixtralForCausalLM", vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=1, num_local_experts=experts, num_experts_per_tok=active,
            ).to(dtype)  # fmt: skip
            ids = torch.zeros(2, 8, dtype=torch.long)
        return count(model, lambda: model(ids).logits.sum()).operations.sum("forward").flops

    one_expert = 2 * 2 * 8 * 2 * 3 * 32 * 48  # layers and tokens, three matrices
    router = 2 * 2 * 8 * 2 * 32  # layers and tokens, one more expert to score
    assert flops(8, 2, dtype) == flops(8, 2, torch.float32)
    assert flops(8, 3, dtype) - flops(8, 2, dtype) == one_expert
    assert flops(16, 2, dtype) - flops(8, 2, dtype) == 8 * router
