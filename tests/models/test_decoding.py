"""Decoding: a step gives what the whole sequence gives, and is counted as what it is."""

import pytest
import torch
from pydantic import ValidationError
from support.language_models import BATCH, BERT, GPT2, LAYERS, LENGTH, LLAMA, VOCABULARY, WIDTH

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import WorkloadConfig
from mfulab.mfu.join import profile_columns
from mfulab.models.build import build
from mfulab.models.counted import count_model
from mfulab.models.decoding import generating


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@torch.no_grad()
def test_each_step_gives_the_last_token_of_the_whole_sequence(config, device):
    model = build(config).eval().to(device)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device=device)
    whole = model(tokens).logits[:, -1:]
    step = generating("decoding", model, tokens, model)
    for _ in range(3):
        torch.testing.assert_close(step().logits, whole)


@torch.no_grad()
def test_prefill_gives_what_follows_the_prompt_and_a_new_cache_each_time():
    model = build(GPT2).eval()
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    step = generating("prefill", model, tokens, model)
    first, second = step(), step()
    torch.testing.assert_close(first.logits, model(tokens).logits[:, -1:])
    assert first.past_key_values is not second.past_key_values
    assert first.past_key_values.get_seq_length() == LENGTH
    with pytest.raises(UnsupportedError, match="keeps no cache"):
        generating("prefill", build(BERT), tokens, model)


def test_prefill_needs_the_logits_of_its_last_token_alone():
    whole = count_model(GPT2, BATCH, LENGTH, mode="inference").count.operations.sum("forward")
    prefill = count_model(GPT2, BATCH, LENGTH, mode="prefill").count.operations.sum("forward")
    assert whole.flops - prefill.flops == 2 * WIDTH * VOCABULARY * BATCH * (LENGTH - 1)
    row = {
        "mode": "prefill",
        "status": "ok",
        "time_s": 0.5,
        "batch_size": BATCH,
        "sequence_length": LENGTH,
    }
    flops = {"prefill_flops": prefill.flops, "key_value_cache_bytes": 800, "parameters": 10}
    joined = profile_columns(
        {**row, "dtype": "bfloat16"}, flops, {"measured_tflop_s": 1.0}, {}, "cpu"
    )
    assert (joined["flops"], joined["key_value_cache_bytes"]) == (prefill.flops, 400)
    assert joined["tokens_per_s"] == BATCH * LENGTH / 0.5


@torch.no_grad()
def test_filling_the_cache_makes_no_logits_but_the_last():
    model = build(GPT2).eval()
    seen = []
    model.lm_head.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape[1]))
    generating("decoding", model, torch.randint(VOCABULARY, (BATCH, LENGTH)), model)()
    assert seen == [1, 1]


@torch.no_grad()
def test_what_keeps_no_cache_is_unsupported():
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    bert, linear = build(BERT).eval(), torch.nn.Linear(LENGTH, 1)
    for model, inputs in ((bert, tokens), (linear, torch.randn(BATCH, LENGTH))):
        with pytest.raises(UnsupportedError, match=f"{type(model).__name__} keeps no cache"):
            generating("decoding", model, inputs, model)
    gpt2 = build(GPT2).eval()
    with pytest.raises(UnsupportedError, match="sequence_length=1 leaves no token"):
        generating("decoding", gpt2, tokens[:, :1], gpt2)


def test_its_flops_are_those_of_one_token_that_attends_to_all():
    """GPT-2 by hand: 12·width² multiply-adds a layer, the head, and 2·width·length a layer of
    attention."""
    macs = LAYERS * (12 * WIDTH**2 + 2 * WIDTH * LENGTH) + WIDTH * VOCABULARY
    counted = count_model(GPT2, BATCH, mode="decoding")
    assert counted.count.operations.sum("forward").flops == 2 * BATCH * macs


def test_decoding_does_not_read_from_a_data_loader():
    with pytest.raises(ValidationError, match="input=host with mode=decoding"):
        WorkloadConfig(name="decoding", mode="decoding", input="host")


def test_mbu_counts_weights_and_cache_and_mfu_the_token():
    """By hand: (8 + 2) GB in bfloat16 at 2 s of 10 GB/s is 50 %; 4 TFLOP in 2 s of 8 TFLOP/s is 25
    %."""
    row = {
        "status": "ok",
        "mode": "decoding",
        "dtype": "bfloat16",
        "time_s": 2.0,
        "batch_size": 8,
        "sequence_length": 512,
    }
    flops = {
        "parameters": 4e9,
        "key_value_cache_bytes": 4e9,
        "decoding_flops": 4e12,
        "decoding_bytes": 24e9,
        "forward_flops": 1e15,
        "forward_bytes": 1e15,
    }
    joined = profile_columns(row, flops, {"measured_tflop_s": 8.0}, {"measured_gb_s": 10.0}, "cpu")
    assert joined["mbu_percent"] == pytest.approx(50)
    assert joined["mfu_percent"] == joined["hfu_percent"] == pytest.approx(25)
    assert joined["tokens_per_s"] == pytest.approx(4)
    assert joined["arithmetic_intensity"] == pytest.approx(4e12 / 12e9)
    assert joined["predicted_memory_bytes"] is None
    assert joined["verdict"] == "memory_bound"
