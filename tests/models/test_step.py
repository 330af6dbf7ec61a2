"""Steps of inference: what autograd records of them, and what a leak keeps."""

import weakref

import pytest
import torch
from pydantic import ValidationError

from mfulab.core.groups import LEAKED_STEPS, WorkloadConfig
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models.step import make


def step(autograd: str):
    linear = {"name": "linear", "_target_": "torch.nn.Linear", "input_shape": [4]}
    config = {
        "model": {**linear, "arguments": {"in_features": 4, "out_features": 2}},
        "batch_size": 3,
        "workload": {"name": "inference", "mode": "inference", "autograd": autograd},
        "precision": {"name": "fp32", "dtype": "float32"},
        "execution": {"name": "eager"},
    }
    return make(ProfileStepConfig.model_validate(config), torch.device("cpu")).call


def test_what_is_recorded():
    no_grad, inference_mode = step("no_grad")(), step("inference_mode")()
    assert (no_grad.requires_grad, no_grad.is_inference()) == (False, False)
    assert (inference_mode.requires_grad, inference_mode.is_inference()) == (False, True)
    assert step("recorded")().grad_fn is not None


@pytest.mark.parametrize(("autograd", "kept"), [("recorded", 0), ("leaked", LEAKED_STEPS)])
def test_a_leak_keeps_the_graphs_of_so_many_steps(autograd, kept):
    one = step(autograd)
    outputs = [weakref.ref(one()) for _ in range(2 * LEAKED_STEPS)]
    alive = [place for place, output in enumerate(outputs) if output() is not None]
    assert alive == list(range(2 * LEAKED_STEPS - kept, 2 * LEAKED_STEPS))


@pytest.mark.parametrize("mode", ["training", "decoding"])
def test_only_inference_may_record(mode):
    with pytest.raises(ValidationError, match=f"autograd=leaked with mode={mode}: only for mode=inference"):
        WorkloadConfig(name="mine", mode=mode, autograd="leaked")
