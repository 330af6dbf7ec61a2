"""`mfulab flops`: a tree and totals of any model, and one message for what cannot be counted."""

import json

import pytest

from mfulab.cli.main import main

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
    assert "active a token" in printed
    assert "deviation +0.00%; every operator has a formula" in printed
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
