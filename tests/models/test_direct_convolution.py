"""Convolutions three ways: the same result and FLOPs, and gradients by gradcheck."""

import pytest
import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.models.convolutional import OneConvolution
from mfulab.models.counted import count_model
from mfulab.models.direct_convolution import direct_convolution

WAYS = ("library", "im2col", "direct")


def test_three_ways_give_one_result_and_cost_the_same_flops():
    # one format: each that Numba compiles takes seconds
    images = torch.randn(2, 3, 6, 5, dtype=torch.float64)
    for way in WAYS:
        torch.manual_seed(0)
        model = OneConvolution(3, 4, way).double()
        assert torch.allclose(model(images), model.exact(images))
        known = ModelConfig.model_validate(
            {
                "name": way,
                "_target_": "mfulab.models.convolutional.OneConvolution",
                "arguments": {"channels": 3, "out": 4, "way": way},
                "input_shape": [3, 6, 5],
            }
        )
        operations = count_model(known, 2).count.operations
        assert operations.sum("forward").flops == 2 * 2 * 9 * 3 * 4 * 6 * 5
        found = operations.sum("backward").flops
        assert found == 2 * 2 * 9 * 3 * 4 * 6 * 5, "the images need no gradient"
        assert not operations.uncounted


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 2])
def test_gradients_are_those_of_differences(padding):
    images = torch.randn(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    filters = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(direct_convolution, (images, filters, padding))
    expected = torch.nn.functional.conv2d(images, filters, padding=padding)
    assert torch.allclose(direct_convolution(images, filters, padding), expected)


def test_short_floats_are_unsupported():
    with pytest.raises(UnsupportedError, match=r"no torch\.bfloat16; has float32 and float64"):
        OneConvolution(3, 4, "direct").bfloat16()(torch.randn(1, 3, 4, 4, dtype=torch.bfloat16))
