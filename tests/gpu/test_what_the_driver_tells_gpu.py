"""A real GPU: CUDA's list is NVML's, torch has code for the card, and `auto` takes it."""

import os

import pytest
import torch

from mfulab.device import identity
from mfulab.device.vendors import cuda_driver, nvidia

pytestmark = pytest.mark.gpu


def test_cuda_lists_the_gpus_that_nvml_does_and_tells_the_same_of_them():
    listed, named = cuda_driver.devices(os.environ), identity.gpus()
    assert [device["uuid"] for device in listed] == [each.uuid for each in named]
    assert [device["name"] for device in listed] == [each.name for each in named]
    assert (
        tuple(listed[0]["capability"])
        == nvidia.Nvidia().capability(named[0].uuid)
        == torch.cuda.get_device_capability(0)
    )
    assert listed[0]["sms"] == torch.cuda.get_device_properties(0).multi_processor_count
    assert cuda_driver.version() >= 1000 * int(torch.version.cuda.split(".")[0])


def test_the_card_is_taken():
    assert identity.resolve("auto") == "cuda"
    assert identity.unused() == ""
    assert nvidia.has_code(torch.cuda.get_arch_list(), torch.cuda.get_device_capability(0))
    assert nvidia.Nvidia().why_unusable(identity.gpus()[0].uuid) == ""
