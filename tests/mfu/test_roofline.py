"""The roofline's expectation against sums by hand, and what it says of memory and of bad input."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core.errors import ConfigurationError
from mfulab.core.groups import ModelConfig
from mfulab.mfu.models import model_config
from mfulab.mfu.roofline import expected
from mfulab.mfu.work import Operation, Work
from mfulab.models.work import expect, work


def made(mode="training", **more):
    product = Operation("layer", "aten::mm", "forward", 2e12, 2e12, 2e12, 1e9, 0)
    thin = Operation("head", "aten::mm", "forward", 1e9, 1e9, 1e9, 4e9, 0)
    norm = Operation("norm", "aten::norm", "forward", 0, 0, 0, 0, 2e9)
    numbers = {
        "tokens": 10,
        "parameters": 1e9,
        "trainable": 1e9,
        "saved_elements": 1e8,
        "cache_elements": 3e8,
        **more,
    }
    return Work(
        mode,
        batch_size=1,
        looked_up=0,
        unmultiplied=0,
        inactive=0,
        operations=(product, thin, norm),
        **numbers,
    )


def test_each_operator_takes_the_longer_of_its_two_times():
    found = expected(made(), peak_flop_s=100e12, memory_byte_s=1e12, element_bytes=2)
    assert found.products_s == pytest.approx(2e12 / 100e12 + 4e9 * 2 / 1e12)
    assert found.others_s == pytest.approx(2e9 * 2 / 1e12)
    assert found.compute_bound_percent == pytest.approx(100 * 0.02 / 0.028)
    assert found.mfu_percent == pytest.approx(100 * 2.001e12 / 0.028 / 100e12)
    assert found.tokens_per_s == pytest.approx(10 / 0.028)


def test_flops_are_of_a_pass_and_of_matmuls_or_attention():
    directions = {"forward": 1, "backward": 2, "recomputed": 4, "gradient": 8}
    operations = []
    for place, operator in enumerate(("aten::mm", "aten::attention")):
        for direction, flops in directions.items():
            counts = (flops * 16**place * scale for scale in (1, 10, 100))
            operations.append(Operation("layer", operator, direction, *counts, 1, 0))
    counted = replace(made(), operations=tuple(operations))
    assert counted.forward_flops == 1 + 16
    assert counted.flops("products") == 11
    assert counted.flops("attention", "causal_flops") == 16 * 110
    assert counted.flops("attention", "executed_flops") == 16 * 1100


def test_what_moves_and_multiplies_nothing_has_an_mfu_of_0():
    moving = Operation("layer", "aten::mm", "forward", 0, 0, 0, 1e9, 0)
    found = expected(replace(made(), operations=(moving,)), 1e15, 1e12, 2)
    assert (found.mfu_percent, found.unfused_mfu_percent, found.compute_bound_percent) == (0, 0, 0)


def test_a_model_that_multiplies_nothing_is_one_message():
    norm = made().operations[-1:]
    with pytest.raises(ConfigurationError, match="no operator of this model multiplies"):
        expected(replace(made(), operations=norm), 1e15, 1e12, 2)
    with pytest.raises(ConfigurationError, match="no operator of this model multiplies"):
        expect("norm_gelu_library", "NVIDIA H200", modes=["inference"])


def test_training_in_16_bits_keeps_sixteen_bytes_a_parameter_and_its_activations():
    assert expected(made(), 1e15, 1e12, 2).memory_bytes == pytest.approx(16e9 + 2e8)
    assert expected(made("decoding"), 1e15, 1e12, 2).memory_bytes == pytest.approx(2e9 + 6e8)


def test_several_devices_divide_all_but_activations_and_cache():
    assert expected(made(), 1e15, 1e12, 2, devices=8).memory_bytes == pytest.approx(2e9 + 2e8)
    found = expected(made("decoding"), 1e15, 1e12, 2, devices=8).memory_bytes
    assert found == pytest.approx(0.25e9 + 6e8)


@pytest.mark.parametrize(("capacity", "fits"), [(None, None), (16.2e9, True), (16.1e9, False)])
def test_it_fits_or_not_or_is_not_known(capacity, fits):
    assert expected(made(), 1e15, 1e12, 2, capacity).fits is fits


@given(st.floats(1e9, 1e18), st.floats(1e6, 1e15), st.sampled_from([0.5, 1, 2, 4, 8]))
def test_no_roofline_allows_more_than_the_peak(peak, bandwidth, element_bytes):
    found = expected(made(), peak, bandwidth, element_bytes)
    assert 0 < found.unfused_mfu_percent <= found.mfu_percent <= 100 + 1e-9
    assert 0 <= found.compute_bound_percent <= 100


def test_decoding_is_bound_by_memory_and_prefill_by_compute():
    prefill, decoding = expect("gpt2", "NVIDIA H100 80GB HBM3", modes=("inference", "decoding"))
    assert prefill.compute_bound_percent > 50 > decoding.compute_bound_percent
    # A token reads every weight that it multiplies by, at least once.
    assert decoding.products_s > 124e6 * 2 / 3350e9 * 0.9


@pytest.mark.parametrize(("batch", "experts"), [(1, 2), (4, 8 * (1 - (6 / 8) ** 4)), (512, 8)])
def test_decoding_reads_the_experts_that_its_tokens_choose(batch, experts):
    counted = work(model_config("mixtral_small"), 64, batch, "decoding")
    width, layers, inner, key, vocabulary = 512, 8, 1792, 128, 32000
    layer = 2 * width**2 + 2 * width * key + 8 * width + experts * 3 * width * inner
    read = layers * layer + width * vocabulary
    # Each operator's inputs and outputs, and the keys and values of 64 tokens.
    tokens = layers * (8 * width + 4 * key + 8 + 2 * (2 * width + 3 * inner)) + width + vocabulary
    cached = layers * 2 * 64 * 4 * key
    assert (
        read
        <= sum(each.elements for each in counted.operations)
        <= 1.001 * (read + batch * (tokens + cached))
    )
    assert "routed evenly" in expected(counted, 1e15, 1e12, 2).assumes


def test_latent_attention_decodes_from_its_latents():
    arguments = {
        "architecture": "DeepseekV3ForCausalLM", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
        "moe_intermediate_size": 16, "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1,
        "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
        "v_head_dim": 8,
    }  # fmt: skip
    config = ModelConfig(
        name="latent", _target_="mfulab.models.huggingface.build", arguments=arguments, task="language_modeling",
        sequence_length=10, vocabulary_size=64,
    )  # fmt: skip
    counted = work(config, 10, 3, "decoding")
    assert counted.cache_elements == 3 * 10 * 2 * (16 + 4)
    # all 10 tokens expand
    attention = 32 * 24 + 24 * 4 * 12 + 32 * (16 + 4) + 10 * 16 * 4 * (8 + 8) + 4 * 8 * 32
    scores = 10 * 4 * (12 + 8)
    experts = 3 * 32 * 48 + (2 + 1) * 3 * 32 * 16 + 32 * 8
    assert counted.forward_flops == 2 * 3 * (2 * (attention + scores) + experts + 32 * 64)
    assert "Latent attention" in expected(counted, 1e15, 1e12, 2).assumes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"device": "L40"}, "precision=fp4"),
        ({"device": "Apple M4"}, "precision=fp4"),
        ({"device": "H100"}, "did you mean"),
        ({"batch_size": 0}, "batch_size=0: give 1 or more"),
        ({"devices": 0}, "devices=0: give 1 or more"),
        ({"modes": ("tuning",)}, "mode=tuning: unknown"),
        ({"model": "resnet18", "sequence_length": 8}, "takes no tokens"),
    ],
)
def test_a_mistake_is_one_message(words, message):
    asked = {"model": "gpt2", "device": "NVIDIA B200", "precision": "fp4", **words}
    with pytest.raises(ConfigurationError, match=message):
        expect(asked.pop("model"), asked.pop("device"), asked.pop("precision"), **asked)
