"""A model's config by name, file or content, and what is wrong with one in a sentence."""

import pytest

from mfulab.core.errors import ConfigurationError
from mfulab.mfu.models import model_config, names, read_yaml

OWN = {"name": "own", "_target_": "torch.nn.Linear", "arguments": {"in_features": 2}}
OWN |= {"input_shape": [2]}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e5", 1e5), ("-2.5E+3", -2500.0), (".5e1", 5.0), ("12", 12), ("a1e5", "a1e5"), ("1e", "1e")],
)
def test_words_are_read_as_hydra_reads_them(text, value):
    assert read_yaml(text) == value


def test_a_word_that_is_no_yaml_is_one_sentence():
    with pytest.raises(ConfigurationError, match="not YAML"):
        read_yaml("[1")


def test_changes_go_by_dotted_keys_and_leave_what_was_given_alone():
    changed = model_config(OWN, {"arguments.out_features": 3, "arguments.inner.deep": 1})
    assert changed.arguments == {"in_features": 2, "out_features": 3, "inner": {"deep": 1}}
    assert model_config(changed, {"name": "other"}).name == "other"
    with pytest.raises(ConfigurationError, match=r"model\.name is 'own'"):
        model_config(OWN, {"name.first": 1})


@pytest.mark.parametrize(
    ("content", "given", "length"),
    [
        ({"vocabulary_size": 9, "input_shape": None}, 7, 7),
        ({"vocabulary_size": 9, "input_shape": None, "sequence_length": 5}, 7, 5),
        ({}, 7, None),
    ],
)
def test_a_model_of_tokens_without_a_length_takes_the_one_given(content, given, length):
    assert model_config({**OWN, **content}, sequence_length=given).sequence_length == length


def test_a_model_is_found_by_its_name_or_its_file(tmp_path):
    assert "gpt2" in names()
    assert model_config("gpt2").name == "gpt2"
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\n_target_: torch.nn.Linear\ninput_shape: [2]\n")
    assert model_config(path).name == model_config(str(path)).name == "mine"
    for content, part in (("- 1", "holds no model"), ("a: [", "not YAML")):
        path.write_text(content)
        with pytest.raises(ConfigurationError, match=part):
            model_config(path)
    with pytest.raises(ConfigurationError, match="model=gpt3: unknown"):
        model_config("gpt3")


def test_a_key_that_models_lack_or_a_wrong_value_is_one_sentence():
    with pytest.raises(ConfigurationError, match="model=own: key=argument: unknown"):
        model_config({**OWN, "argument": 1})
    with pytest.raises(ConfigurationError, match="model=own: sequence_length"):
        model_config({**OWN, "sequence_length": "long"})
