"""`mfulab flops`: a tree and totals of any model, and one message for what cannot be counted."""

import json

import pytest
from support.bad_yaml import BAD_YAML

from mfulab.cli.main import main
from mfulab.core.language import LANGUAGES, Texts
from mfulab.mfu.models import names

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
}


def test_a_published_config_is_enough(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    assert main(["flops", str(tmp_path), "--sequence-length", "16", "--depth", "1"]) == 0
    printed = capsys.readouterr().out
    # Attention's four projections, two of eight experts' three matrices, the router; then the head.
    token = (
        2 * (2 * (2 * 32 * 32 + 2 * 32 * 16) + 2 * 2 * 3 * 32 * 48 + 2 * 32 * 8 + 4 * 16 * 32)
        + 2 * 32 * 64
    )
    assert f"forward {16 * token / 1e3:.3g} kFLOP" in printed
    assert "active per token" in printed
    assert "deviation +0.00 %; every operator has a formula" in printed
    assert "lm_head: Linear" in printed


def test_a_model_of_ones_own_by_its_path(capsys):
    words = ["torch.nn.Linear", "arguments={in_features: 64, out_features: 32}", "input_shape=[64]"]
    assert main(["flops", *words, "--batch-size", "8"]) == 0
    assert "forward 32.8 kFLOP, backward 32.8 kFLOP" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rsnet18"], "Did you mean resnet18"),
        (["resnet18", "input_shape"], "give key=value"),
        (["missing/config.json"], "no such file"),
        (["torch.nn.Nothing", "input_shape=[3]"], "torch.nn has no Nothing"),
        (
            [
                "torch.nn.Linear",
                "arguments={in_features: 64, out_features: 32}",
                "input_shape=[63]",
            ],
            "model.input_shape",
        ),
    ],
)
def test_mistakes_have_one_message(words, message, capsys):
    assert main(["flops", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


def test_a_config_that_is_none(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert main(["flops", str(tmp_path / "config.json")]) == 2
    assert "no config.json of transformers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [{"text_config": [1]}, {"text_config": None}, {"vocab_size": [1]}, {"image_size": {}}],
)
def test_a_config_of_other_types_is_one_sentence(content, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["ViTForImageClassification"], **content}))
    assert main(["flops", str(path)]) in (0, 2)
    assert capsys.readouterr().err.count("\n") <= 1


BAD_MODELS = BAD_YAML | {
    "a number as a key": "name: x\n1: 2",
    "a number as an argument's name": "{name: x, _target_: torch.nn.Linear, arguments: {1: 2}}",
    "a list": "[1]",
    "a size beyond any": (
        "{name: x, _target_: torch.nn.Linear, input_shape: [4],"
        " arguments: {in_features: 4, out_features: 99999999999999999999999}}"
    ),
}


@pytest.mark.parametrize("name", BAD_MODELS)
@pytest.mark.parametrize(
    "words",
    [
        ["flops", "mine.yaml"],
        ["fits", "mine.yaml", "--device", "H200-NVL"],
        ["explain", "model=mine.yaml", "device=H200-NVL", "batch_size=1"],
    ],
    ids=lambda words: words[0],
)
def test_a_model_s_file_that_is_none_is_one_sentence(name, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(BAD_MODELS[name])
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("mfulab: ")
    assert said.count("\n") == 1
    assert len(said) < 400
    assert not (tmp_path / "owned").exists()


def test_all_models_are_listed_where_an_unknown_one_says_so(capsys):
    assert main(["flops", "gpt3"]) == 2
    assert "mfulab flops --list" in capsys.readouterr().err
    assert main(["flops", "--list"]) == 0
    assert capsys.readouterr().out.split() == list(names())


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_count_is_in_the_terminals_language_and_says_its_batch(language, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    options = ["--sequence-length", "16", "--batch-size", "3", "--language", language]
    assert main(["flops", str(tmp_path), *options]) == 0
    printed = capsys.readouterr().out
    text = Texts(language, "flops")
    assert text("of_batch_tokens", batch=3, tokens=16) in printed
    assert text("all_formulas") in printed
    if language == "ko":
        for word in ("forward", "parameters", "certainty", "formula", "matmul"):
            assert word not in printed
