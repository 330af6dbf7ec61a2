"""Every model config builds the architecture that its publisher describes, or fails clearly."""

import json
import subprocess
import sys

import pytest
import torch
from support.models import CONFIGS, PARAMETERS, read
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.models.build import (
    ModelError,
    build,
    enable_checkpointing,
    first_tensor,
    loss,
    make_batch,
)
from mfulab.models.counted import count_model


# `own` is the form that a user fills in.
@pytest.mark.parametrize("name", sorted({path.stem for path in CONFIGS.glob("*.yaml")} - {"own"}))
def test_every_config_builds_and_goes_by_its_files_name(name):
    config = read(name)
    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in build(config).parameters())
    assert config.name == name


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count_is_the_publishers(name):
    with torch.device("meta"):
        model = build(read(name))
    assert read(name).name == name
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", ["simple_cnn", "digit_cnn", "linear_1024", "lstm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_models_take_a_training_step(name, dtype):
    config = read(name)
    model = build(config).to(dtype)
    batch = make_batch(config, 2, 5 if config.vocabulary_size else None, dtype=dtype)
    value = loss(model(batch.inputs), batch.targets, config.task)
    value.backward()
    assert value.shape == ()
    assert torch.isfinite(value)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def lazy() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_lazy_layers_have_their_shapes_when_built(device):
    config = ModelConfig(name="lazy", _target_=f"{__name__}.lazy", input_shape=[3, 8, 8])
    with torch.device(device):
        found = sum(parameter.numel() for parameter in build(config).parameters())
        assert found == 4 * 27 + 4 + 4 * 36 * 10 + 10
    assert count_model(config, 2).means == "meta"


def test_batches_are_random_and_repeatable():
    config = read("simple_cnn")
    torch.manual_seed(1)
    inputs = make_batch(config, 2).inputs
    assert inputs.shape == (2, 3, 224, 224)
    assert 0.9 < inputs.std() < 1.1
    torch.manual_seed(1)
    assert torch.equal(inputs, make_batch(config, 2).inputs)


def test_token_batches_stay_in_the_vocabulary():
    batch = make_batch(read("gpt2"), 3, 7)
    assert batch.inputs.shape == batch.targets.shape == (3, 7)
    assert batch.inputs.max() < 50257
    assert not torch.equal(batch.inputs, batch.targets)
    assert make_batch(read("gpt2"), 3, device="meta").inputs.shape == (3, 1024)


def test_outputs_of_every_kind_are_read():
    logits = torch.randn(2, 5)
    assert first_tensor(logits) is logits
    assert first_tensor((logits, None)) is logits
    assert first_tensor({"out": logits}) is logits
    with pytest.raises(ModelError, match="no tensor"):
        first_tensor("text")
    with pytest.raises(ModelError, match="no class scores"):
        loss(torch.randn(4), torch.zeros(4, dtype=torch.long))


def test_checkpointing_changes_no_gradient():
    config = read("digit_cnn")
    batch = make_batch(config, 2)
    plain, recomputed = build(config), build(config)
    recomputed.load_state_dict(plain.state_dict())
    assert enable_checkpointing(recomputed) == 2
    for model in (plain, recomputed):
        loss(model(batch.inputs), batch.targets).backward()
    for one, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_a_model_without_blocks_cannot_be_checkpointed():
    with refused(UnsupportedError, "no_blocks_to_recompute", model="Linear"):
        enable_checkpointing(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("no_such_module.build", {}, "cannot be imported"),
        ("torch.nn.NoSuchLayer", {}, "torch.nn has no NoSuchLayer"),
        ("torch.nn.Linear", {"wrong": 1}, "unexpected keyword argument"),
        ("torch.get_default_dtype", {}, "returned a dtype"),
        ("torch.float32", {}, "not a callable"),
        ("mfulab.models.huggingface.build", {"architecture": "NoSuchModel"}, "no such model class"),
    ],
)
def test_a_target_that_cannot_be_built_says_why(target, arguments, message):
    config = ModelConfig(name="wrong", _target_=target, arguments=arguments, input_shape=[3])
    with pytest.raises(ModelError, match=message):
        build(config)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def build(:\n", "importing own_{}: invalid syntax"),
        ("def build():\n    return wdht\n", "'wdht' is not defined"),
    ],
)
def test_a_typing_mistake_in_ones_own_file_is_told_as_such(tmp_path, monkeypatch, code, message):
    name = f"own_{len(code)}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    config = ModelConfig(name="wrong", _target_=f"{name}.build", input_shape=[3])
    with pytest.raises(ModelError, match=message.format(len(code))) as error:
        count_model(config, 1)
    assert "input_shape" not in str(error.value)


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(
        ModelError, match="sequence_length=1025: GPT2LMHeadModel has positions for 1024 tokens"
    ):
        count_model(read("gpt2"), 1, 1025)
    assert (
        count_model(read("gpt2"), 1, 1024, mode="inference").count.operations.sum("forward").flops
        > 0
    )


TINY_GPT2 = {
    "name": "gpt2",
    "_target_": "mfulab.models.huggingface.build",
    "task": "language_modeling",
    "vocabulary_size": 64,
    "sequence_length": 8,
    "arguments": {
        "architecture": "GPT2LMHeadModel",
        "n_layer": 1,
        "n_embd": 16,
        "n_head": 2,
        "vocab_size": 64,
        "n_positions": 8,
    },
}
TRAINS_ONCE = """
import json, sys, torch
from mfulab.core.groups import ModelConfig
from mfulab.models import build
config = ModelConfig.model_validate(json.loads(sys.argv[1]))
build.load(config, is_compiled=False)
before = set(sys.modules)
model = build.build(config)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.zeros(1, 8, dtype=int)).logits.sum().backward()
optimizer.step()
print(len(set(sys.modules) - before))
"""


@pytest.mark.slow
def test_code_that_a_model_needs_is_imported_before_its_memory_is_read():
    """Without a warm worker a run imports more than 1,000 modules, which are not the model's."""
    command = [sys.executable, "-c", TRAINS_ONCE, json.dumps(TINY_GPT2)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(printed) < 20
