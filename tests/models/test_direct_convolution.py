"""Convolutions three ways: the same result and FLOPs, gradients by gradcheck, a GPU's kernels in the simulator."""

import os
import subprocess
import sys

import pytest
import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.models.convolutional import OneConvolution
from mfulab.models.counted import count_model
from mfulab.models.direct_convolution import direct_convolution

WAYS = ("library", "im2col", "direct")


def test_three_ways_give_one_result_and_cost_the_same_flops():
    images = torch.randn(2, 3, 6, 5, dtype=torch.float64)  # one format: each that Numba compiles takes seconds
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
        assert operations.sum("backward").flops == 2 * 2 * 9 * 3 * 4 * 6 * 5, "the images need no gradient"
        assert not operations.uncounted


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


def test_the_gpu_s_kernels_are_right_in_the_simulator():
    """A process of its own: the simulator replaces numba.cuda."""
    code = """
import torch
from mfulab.models.direct_convolution_cuda import convolve, correlate
images, filters = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 3, 3, requires_grad=True)
expected = torch.nn.functional.conv2d(images, filters, padding=1)
out, found = torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3, 3)
convolve(images, filters.detach(), out, 1)
assert torch.allclose(out, expected, atol=1e-5)
gradient = torch.randn_like(expected)
expected.backward(gradient)
correlate(images, gradient, found, 1)
assert torch.allclose(found, filters.grad, atol=1e-4)
"""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    finished = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
