"""Conventions against their published formulas, waterfalls that sum, numbers found again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.slow import few

import mfulab
from mfulab.cli.explain import show
from mfulab.core.errors import ConfigurationError
from mfulab.core.groups import ModelConfig
from mfulab.core.language.quantities import in_percent
from mfulab.flops.compare import transformer_shape
from mfulab.flops.formulas import kaplan_flops, palm_flops
from mfulab.mfu.conventions import CONVENTIONS, OURS, POSSIBLE, Choices, flops
from mfulab.mfu.explain import covered_percent, denominators_of, explained
from mfulab.mfu.models import model_config
from mfulab.models.build import build
from mfulab.models.decoders import computed
from mfulab.models.work import _counted, explain, work

BLOCKS = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4}


def config(architecture: str, **arguments: int) -> dict:
    """A small decoder of five blocks, as a config has it."""
    known = {"name": "small", "_target_": "mfulab.models.huggingface.build"}
    shape = {"task": "language_modeling", "sequence_length": 128, "vocabulary_size": 500}
    return {**known, "arguments": {"architecture": architecture, **arguments}, **shape}


OF_LLAMA = BLOCKS | {"intermediate_size": 160, "num_key_value_heads": 2}
SMALL = config("LlamaForCausalLM", **OF_LLAMA)
MIXTURE = config("MixtralForCausalLM", **OF_LLAMA, num_local_experts=8, num_experts_per_tok=2)
OPT = config("OPTForCausalLM", **BLOCKS, ffn_dim=256, word_embed_proj_dim=64)
GPT = config("GPT2LMHeadModel", vocab_size=500, n_embd=64, n_layer=5, n_head=4)
LLAMA = work(ModelConfig(**SMALL))
DENOMINATORS = denominators_of("NVIDIA H100 80GB HBM3", "bf16")[1]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(SMALL, id="llama"),
        pytest.param(MIXTURE, id="mixture"),
        pytest.param(OPT, id="opt", marks=pytest.mark.slow),
        pytest.param(GPT, id="gpt2", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("mode", few(["training", "inference"]))
def test_two_counts_of_alike_blocks_are_the_count_of_all(content, mode):
    config = ModelConfig(**content)
    short, whole = work(config, mode=mode), _counted(config, None, 1, mode)
    assert replace(short, operations=()) == replace(whole, operations=())
    key = lambda each: (each.layer, each.operator, each.direction)  # noqa: E731
    assert sorted(short.operations, key=key) == sorted(whole.operations, key=key)


def test_named_conventions_are_their_formulas():
    shape = transformer_shape(build(ModelConfig(**SMALL)))
    assert shape is not None
    tokens = 128
    by_name = {each.name.split(":")[0]: each.choices for each in CONVENTIONS}
    assert flops(LLAMA, by_name["PaLM, torchtitan, nanoGPT"]) == palm_flops(shape, tokens, 128)
    assert flops(LLAMA, by_name["Kaplan"]) == kaplan_flops(shape, tokens)
    every = replace(shape, parameters=int(LLAMA.parameters))
    found = flops(LLAMA, by_name["llm-foundry MFU, MaxText's 2025 page"])
    assert found == palm_flops(every, tokens, 128)
    seen = flops(LLAMA, by_name["llm-foundry HFU"])
    assert seen == pytest.approx(4 / 3 * palm_flops(every, tokens, 128))
    assert flops(LLAMA, by_name["6N of all parameters"]) == 6 * LLAMA.parameters * tokens


def test_all_experts_are_those_that_the_model_holds():
    mixture = work(ModelConfig(**MIXTURE))
    every = flops(
        mixture, Choices(experts="total", unmultiplied=True, looked_up=True, attention="none")
    )
    assert every == pytest.approx(6 * mixture.parameters * mixture.tokens)


@given(
    st.builds(
        lambda values: Choices(**dict(zip(POSSIBLE, values, strict=True))),
        st.tuples(*(st.sampled_from(values) for values in POSSIBLE.values())),
    ),
    st.floats(1e-3, 1e6),
)
def test_steps_sum_to_the_difference(choices, speed):
    from mfulab.mfu.explain import change

    row = change("any", choices, DENOMINATORS[-1], LLAMA, speed, DENOMINATORS[0])
    ours = change("ours", OURS, DENOMINATORS[0], LLAMA, speed, DENOMINATORS[0])
    assert sum(row.steps.values()) == pytest.approx(
        row.mfu_percent - ours.mfu_percent, rel=1e-9, abs=1e-9 * row.mfu_percent
    )


@pytest.mark.parametrize("convention", few(CONVENTIONS, 3), ids=lambda each: each.name)
def test_a_reported_number_is_found_again(convention):
    counted = work(ModelConfig(**MIXTURE)) if convention.choices.experts == "total" else LLAMA
    if convention.choices.elements:  # of a decoder with an untied head it is Kaplan's
        counted = replace(counted, total_flos=0.6 * flops(counted, OURS))
    speed = 20e12 / flops(counted, OURS) * 20
    mfu = 100 * flops(counted, convention.choices) * speed / 1e12 / DENOMINATORS[0].tflop_s
    found = explained("any", "H100", counted, speed, DENOMINATORS, mfu)
    assert (
        any(row.convention == convention.name for row in found.matches)
        or found.matches[0].changes == 0
    )


def test_torchtitan_prints_33_to_39_percent_of_llama_3_1_8b():
    # pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md: 5,762 and 6,667 tokens a
    # second and GPU.
    config = model_config("llama_3_1_8b")
    counted = work(config, 8192)
    without, compiled = (
        explained("", "", counted, speed / 8192, DENOMINATORS).ours.mfu_percent
        for speed in (5762, 6667)
    )
    assert without == pytest.approx(33.7, abs=0.05)
    assert compiled == pytest.approx(39.0, abs=0.05)


def test_the_library_function():
    found = explain(SMALL, "NVIDIA H100 80GB HBM3", tokens_per_s=1e6, devices=2)
    assert found.tflop_s == pytest.approx(flops(LLAMA, OURS) * 1e6 / 128 / 2 / 1e12)
    assert found.conventions[0].convention == "mfulab, NeMo"


def test_a_batch_is_of_each_device():
    device = "NVIDIA H100 80GB HBM3"
    by_time = explain(SMALL, device, time_s=0.5, batch_size=4, devices=8)
    assert by_time.tflop_s == pytest.approx(flops(LLAMA, OURS) * 4 / 0.5 / 1e12)
    assert by_time.tflop_s == explain(SMALL, device, samples_per_s=8 * 4 / 0.5, devices=8).tflop_s


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tokens_per_s": 0}, "tokens_per_s=0: give a number above 0"),
        ({}, "no speed: give exactly one of"),
        ({"tokens_per_s": 1, "time_s": 1}, "tokens_per_s=1 and time_s=1: give exactly one of"),
        (
            {"tokens_per_s": 1, "device": "H100"},
            "did you mean H100 NVL (835.3 TFLOP/s in bf16), H100 PCIe",
        ),
        ({"tokens_per_s": 1, "precision": "int4"}, "precision=int4: unknown"),
        ({"tokens_per_s": 1, "device": "T4"}, "precision=bf16"),
        (
            {"tokens_per_s": 1, "model": "llama_2_7"},
            "model=llama_2_7: unknown. Did you mean llama_2_7b, ",
        ),
        (
            {"tokens_per_s": 1, "model": SMALL | {"input_shap": [3]}},
            "key=input_shap: unknown. Did you mean",
        ),
        (
            {"tokens_per_s": 1, "model": "gpt2", "sequence_length": 2048},
            "positions for 1024 tokens",
        ),
        ({"tokens_per_s": 1, "model": "resnet18"}, "model=resnet18 takes no tokens"),
        (
            {"samples_per_s": 1, "model": "resnet18", "sequence_length": 8},
            "model=resnet18 takes no tokens",
        ),
        ({"tokens_per_s": 1, "devices": 0}, "devices=0: give 1 or more"),
        (
            {"time_s": 1, "devices": 2},
            "time_s=1: give batch_size, the samples of a step on each of 2 devices",
        ),
        ({"samples_per_s": 1, "batch_size": 2}, "batch_size=2: says nothing beside samples_per_s"),
        ({"time_s": 1, "batch_size": 0}, "batch_size=0: give 1 or more"),
        ({"tokens_per_s": 1, "mode": "tuning"}, "mode=tuning: unknown"),
    ],
)
def test_a_mistake_is_one_message(words, message):
    given_words = {"model": SMALL, "device": "NVIDIA H100 80GB HBM3", **words}
    with pytest.raises(ConfigurationError) as raised:
        explain(given_words.pop("model"), given_words.pop("device"), **given_words)
    assert message in str(raised.value)


def test_an_unknown_device_takes_a_given_peak():
    name, denominators = denominators_of("an accelerator", "bf16", 500.0)
    assert (name, denominators[0].tflop_s) == ("an accelerator", 500.0)
    by_mistake = {500 / count for count in (2, 4, 8, 16)} | {500 * count for count in (2, 4, 8, 16)}
    assert {each.tflop_s for each in denominators} == {500, *by_mistake}


@pytest.mark.parametrize("content", [SMALL, MIXTURE, GPT], ids=["llama", "mixture", "gpt2"])
@pytest.mark.parametrize("mode", few(["training", "decoding", "inference"], 2))
def test_a_decoder_by_arithmetic_is_the_count_of_its_module(content, mode):
    tied = {**content["arguments"], "tie_word_embeddings": content is SMALL}
    config = ModelConfig(**{**content, "arguments": tied})
    one, other = work(config, 96, 3, mode), computed(config, 96, 3, mode)
    same = {"operations": (), "saved_elements": None, "message": ""}
    assert replace(one, **same) == replace(other, **same)
    assert by_layer(one) == by_layer(other)


def by_layer(counted):
    """Sums of what matmuls and attention of a layer cost in a pass."""
    sums = {}
    for each in counted.operations:
        if each.flops:
            key = each.layer, each.direction, "attention" in each.operator
            costs = each.flops, each.causal_flops, each.executed_flops, each.elements
            sums[key] = [
                before + cost for before, cost in zip(sums.get(key, [0] * 4), costs, strict=True)
            ]
    return sums


@pytest.mark.parametrize(
    "changed", [{"attention_bias": True}, {"hidden_size": None}, {"attention": "eager"}, {"new": 3}]
)
def test_a_decoder_that_is_more_than_its_known_dimensions_is_not_computed(changed):
    with pytest.raises(
        ConfigurationError, match=r'counting it needs torch: pip install "\.\[torch\]"'
    ):
        computed(ModelConfig(**{**SMALL, "arguments": {**SMALL["arguments"], **changed}}))


def test_a_decoder_has_no_more_tokens_than_positions():
    with pytest.raises(ConfigurationError, match="positions for 1024 tokens"):
        computed(ModelConfig(**GPT), 1025)


def test_a_match_among_many_is_said_to_be_chance_and_one_of_our_own_is_not(capsys):
    run = {"device": "NVIDIA H100 80GB HBM3", "sequence_length": 8192, "tokens_per_s": 5762}
    own = explain("llama_3_1_8b", **run, reported=33.7)
    assert own.matches[0].changes == 0
    assert own.chance_percent < 10
    far = explain("llama_3_1_8b", **run, reported=39.2)
    assert far.matches[0].changes > 1
    assert far.tried > 100
    assert far.chance_percent > 50
    assert explain("llama_3_1_8b", **run).chance_percent is None
    words = ["model=llama_3_1_8b", *(f"{key}={value}" for key, value in run.items())]
    for reported, said in ((39.2, True), (33.7, False)):
        show.callback([*words, f"reported={reported}"], as_json=False, language="en")
        assert ("This may be chance" in capsys.readouterr().out) == said


def test_the_chance_of_a_match_is_the_part_of_the_numbers_near_it_that_bands_cover():
    # Of 30 to 50: 39.7 to 40.3, 44.7 to 45.5 by two that overlap, 30 to 30.1 at the edge.
    found = covered_percent([40.0, 45.0, 45.2, 29.8, 80.0], 40.0)
    assert found == pytest.approx(100 * (0.6 + 0.8 + 0.1) / 20)


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA H100 PCIe"])
def test_a_rounded_peak_taken_by_mistake_is_found(device):
    """A number over a printed peak: 67, 60 and 51 TFLOP/s in fp32, which are rounded."""
    run = {"device": device, "sequence_length": 8192, "tokens_per_s": 5762}
    printed = mfulab.peak(device, "fp32").datasheet
    speed = explain("llama_3_1_8b", **run).tflop_s
    found = explain("llama_3_1_8b", **run, reported=round(100 * speed / printed, 2))
    assert "fp32" in found.matches[0].denominator
    assert found.matches[0].changes == 1
    assert not found.may_be_chance


def test_a_number_that_two_mistakes_give_is_called_chance():
    """The causal half over the peak in fp32 gives 45.51 % of a run at 3.46 %."""
    counted = computed(model_config("llama_3_1_8b"), 8192)
    speed = 0.0346 * DENOMINATORS[0].tflop_s * 1e12 / flops(counted, OURS)
    found = explained("any", "any", counted, speed, DENOMINATORS, 45.51)
    assert found.may_be_chance


def test_an_own_model_takes_the_length_that_is_asked_for():
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    }
    own = {
        "name": "own", "_target_": "mfulab.models.huggingface.build", "task": "language_modeling",
        "vocabulary_size": 100, "arguments": {"architecture": "LlamaForCausalLM", "vocab_size": 100, **sizes},
    }  # fmt: skip
    found = explain(own, device="NVIDIA H200", sequence_length=128, tokens_per_s=1000)
    # Of a token: four projections of 64 · 64, three of the MLP, pairs with 128 keys; the output
    # layer.
    seen = found.ours.flops_per_token
    assert seen == 3 * 2 * (2 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64 * 128) + 64 * 100)
    with pytest.raises(ConfigurationError, match="token inputs need sequence_length"):
        explain(own, device="NVIDIA H200", tokens_per_s=1000)


@pytest.mark.parametrize(("model", "times"), [("resnet18", 991), ("gpt2", 0.60), ("vit_b_16", 744)])
def test_the_trainers_total_flos_of_images_and_of_a_tied_head_is_a_line_of_its_own(model, times):
    """Documented in docs/conventions.md: elements of an image stand for tokens, and a tied head is
    no parameter."""
    length = {"sequence_length": 1024} if model == "gpt2" else {}
    told = mfulab.explain(model, "NVIDIA H100 80GB HBM3", samples_per_s=1.0, **length)
    (row,) = (row for row in told.conventions if row.convention.startswith("Hugging Face Trainer"))
    assert row.flops_per_token / told.ours.flops_per_token == pytest.approx(times, rel=0.005)
    assert sum(row.steps.values()) == pytest.approx(row.mfu_percent - told.ours.mfu_percent)


def test_the_trainers_total_flos_of_an_untied_decoder_is_kaplans():
    told = mfulab.explain("llama_3_1_8b", "NVIDIA H100 80GB HBM3", tokens_per_s=1.0)
    assert not [
        row for row in told.conventions if row.convention.startswith("Hugging Face Trainer")
    ]


def test_an_explanation_and_a_peak_show_themselves():
    found = explain("gpt2", "NVIDIA H100 80GB HBM3", tokens_per_s=1e5)
    lines = str(found).splitlines()
    rows = [found.ours, *found.conventions, *found.denominators]
    for row in rows:
        assert any(f"{row.mfu_percent:.1f}" in line for line in lines)
    assert in_percent(found.ours.mfu_percent) in lines[0]
    assert found._repr_html_().startswith("<pre>")
    known = mfulab.peak("NVIDIA H100 80GB HBM3", "bf16")
    unknown = mfulab.peak("a <b>device</b> of tomorrow", "bf16")
    assert f"{known.spec:g} TFLOP/s" in str(known)
    assert known.device in known._repr_html_()
    assert str(unknown.reason) in str(unknown)
    assert "<b>" not in unknown._repr_html_()
