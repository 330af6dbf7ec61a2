"""Models of several named inputs."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from mfulab.core.groups import ModelConfig
from mfulab.flops.count import CountError
from mfulab.models.build import build, make_batch
from mfulab.models.by_name import ByName
from mfulab.models.counted import count_model

NAMED = {"inputs": {"image": [3, 4, 4], "words": [5]}, "input_vocabularies": {"words": 7}}


class Seen(nn.Module):
    """Keeps what it was called with."""

    def forward(self, **inputs):
        self.inputs = inputs
        return inputs["image"].flatten(1)


def config(**given):
    return ModelConfig(name="seen", _target_="mfulab.models.build.ByName", **given)


def test_each_input_has_its_shape_and_its_values():
    model = ByName(Seen(), NAMED["inputs"], NAMED["input_vocabularies"])
    batch = make_batch(config(**NAMED), 64)
    assert batch.inputs.shape == (64, 3 * 4 * 4 + 5)
    model(batch.inputs)
    image, words = model.model.inputs["image"], model.model.inputs["words"]
    assert image.shape == (64, 3, 4, 4)
    torch.testing.assert_close(image.flatten(1), batch.inputs[:, :48])
    assert words.dtype == torch.int64
    assert set(words.unique().tolist()) == set(range(7))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_ids_are_below_the_vocabulary_in_each_format(dtype):
    model = ByName(Seen(), NAMED["inputs"], NAMED["input_vocabularies"])
    model(make_batch(config(**NAMED), 256, dtype=dtype).inputs)
    words = model.model.inputs["words"]
    assert 0 <= words.min() <= words.max() < 7


@pytest.mark.parametrize(
    "given",
    [
        {},
        {**NAMED, "input_shape": [3]},
        {**NAMED, "vocabulary_size": 7, "sequence_length": 3},
        {"inputs": {}},
        {"inputs": {"image": []}},
        {"inputs": {"image": [3]}, "input_vocabularies": {"words": 4}},
        {"input_shape": [3], "input_vocabularies": {"words": 4}},
    ],
)
def test_inputs_that_do_not_go_together_are_refused(given):
    with pytest.raises(ValidationError):
        config(**given)


def test_a_model_without_named_inputs_is_built_as_it_is():
    plain = ModelConfig(
        name="linear", _target_="torch.nn.Linear", arguments={"in_features": 3, "out_features": 2},
        input_shape=[3],
    )  # fmt: skip
    assert type(build(plain)) is nn.Linear
    assert make_batch(plain, 4).inputs.shape == (4, 3)


class OfAnImage(nn.Module):
    """Takes one input of its own name."""

    def forward(self, image):
        return image.flatten(1)


def test_a_name_that_the_model_does_not_take_is_answered_by_what_names_inputs():
    target = f"{__name__}.OfAnImage"
    wrong = ModelConfig(name="mine", _target_=target, inputs={"picture": [3, 4]})
    with pytest.raises(CountError) as raised:
        count_model(wrong, 2)
    told = raised.value.said
    assert told.key == "named_inputs_not_counted"
    assert told.numbers["inputs"] == "picture=[3, 4]"
