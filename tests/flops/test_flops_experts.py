"""Mixtures of experts: published sizes, experts that are read, tokens that are dropped."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfulab.flops.experts import (
    RoutedTokens,
    active_parameters,
    expected_experts_read,
    imbalance,
)
from mfulab.models.huggingface import build

MIXTRAL_8X7B = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def test_mixtral_has_46_7_billion_parameters_and_12_9_active_ones():
    """Jiang et al. 2024, arXiv:2401.04088: 47B in all, 13B a token."""
    with torch.device("meta"):
        model = build("MixtralForCausalLM", **MIXTRAL_8X7B)
    assert sum(parameter.numel() for parameter in model.parameters()) == 46_702_792_704
    assert active_parameters(model) == 12_879_925_248
    assert active_parameters(torch.nn.Linear(3, 4)) == 16


routed = st.lists(st.integers(0, 50), min_size=1, max_size=16)


@given(routed)
def test_what_experts_do_with_tokens(tokens_of):
    if sum(tokens_of):
        assert 1 <= imbalance(tokens_of) <= len(tokens_of)


def test_experts_by_hand():
    assert imbalance([3, 0, 1, 0]) == 3
    assert expected_experts_read(8, 2, 1) == 2
    assert expected_experts_read(8, 8, 5) == 8
    assert expected_experts_read(256, 8, 10**6) == pytest.approx(256)
    with pytest.raises(ValueError, match="no token"):
        imbalance([0, 0])


def test_experts_that_no_token_chose_are_not_read():
    width, hidden, layers = 32, 48, 2
    model = build(
        "MixtralForCausalLM", vocab_size=50, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=8, num_experts_per_tok=2,
    ).eval()  # fmt: skip
    with torch.no_grad(), RoutedTokens() as routed:
        model(torch.zeros(3, 1, dtype=torch.long))
    expected = layers * (8 - 2) * 3 * width * hidden
    assert routed.unread_parameters == expected, "equal tokens choose the same two of eight"
    found = routed.imbalance
    assert found == 8 / 2, "two experts have all, the mean of eight is a quarter of theirs"
    with RoutedTokens() as routed:
        torch.nn.Linear(4, 4)(torch.randn(2, 4))
    assert (routed.unread_parameters, routed.imbalance) == (None, None)


def test_a_routers_imbalance_is_that_of_its_choices():
    """Each layer by the choices that its router returns, with tokens that differ."""
    torch.manual_seed(1)
    model = build(
        "MixtralForCausalLM", vocab_size=50, hidden_size=16, intermediate_size=8, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2,
    ).eval()  # fmt: skip
    with torch.no_grad(), RoutedTokens() as routed:
        scores = model(torch.arange(50).view(2, 25), output_router_logits=True).router_logits
    by_hand = [
        imbalance([int((layer.topk(2).indices == expert).sum()) for expert in range(4)])
        for layer in scores
    ]
    assert len(set(by_hand)) > 1, "or the mean is not tested"
    assert routed.imbalance == pytest.approx(sum(by_hand) / 3)
