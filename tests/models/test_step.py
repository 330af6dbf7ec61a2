"""Steps: what autograd records, what a leak keeps, what training holds, how a teacher runs."""

import weakref

import pytest
import torch
from pydantic import ValidationError

from mfulab.core.groups import LEAKED_STEPS, WorkloadConfig
from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models import execution
from mfulab.models.build import Batch
from mfulab.models.counted import count_model
from mfulab.models.step import make, make_model, make_optimizer, nothing, training_step

CPU = torch.device("cpu")
LINEAR = {"name": "linear", "_target_": "torch.nn.Linear", "input_shape": [4]}
LINEAR["arguments"] = {"in_features": 4, "out_features": 2}


def config(workload, model=LINEAR, **execution_keys) -> ProfileStepConfig:
    return ProfileStepConfig.model_validate(
        {
            "model": model,
            "batch_size": 3,
            "workload": {"name": "w", **workload},
            "precision": {"name": "fp32", "dtype": "float32"},
            "execution": {"name": "e", **execution_keys},
        }
    )


def step(autograd: str):
    return make(config({"mode": "inference", "autograd": autograd}), CPU).call


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
    with pytest.raises(
        ValidationError, match=f"autograd=leaked with mode={mode}: only for mode=inference"
    ):
        WorkloadConfig(name="mine", mode=mode, autograd="leaked")


def test_the_output_lives_through_the_backward_pass_as_the_count_of_the_peak_has_it():
    """Logits are most of it: as many again as those saved for the backward pass."""
    wide = {**LINEAR, "arguments": {"in_features": 4, "out_features": 5000}}
    asked = config({"optimizer": "sgd"}, wide)
    model, batch = make_model(asked, CPU)
    train = training_step(asked, model, make_optimizer(list(model.parameters()), asked), batch)
    with OperatorCounter(LayerTracker(model)) as counter:
        train()
    found = counter.live.peak.elements
    assert found == pytest.approx(count_model(asked.model, 3).count.peak.elements, rel=0.01)


@pytest.mark.parametrize("mode", ["eager", "cuda_graph"])
def test_a_step_leaves_no_gradients_to_which_the_next_would_add(mode):
    asked = config({"optimizer": "sgd"}, mode=mode)
    model, batch = make_model(asked, CPU)
    training_step(asked, model, make_optimizer(list(model.parameters()), asked), batch)()
    assert [weight.grad for weight in model.parameters()] == [None, None]


def test_gradients_are_sent_by_the_last_of_several_micro_batches():
    asked, told = config({"gradient_accumulation": 3}), []
    model, batch = make_model(asked, CPU)
    training_step(
        asked, model, make_optimizer(list(model.parameters()), asked), batch, nothing, told.append
    )()
    assert told == [False, False, True]


def test_a_teacher_is_laid_out_and_issued_as_its_student(monkeypatch):
    issued, issue = [], execution.issue

    def noted(model, batch: Batch, asked):
        issued.append(model)
        return issue(model, batch, asked)

    monkeypatch.setattr(execution, "issue", noted)
    images = {
        "name": "cnn",
        "_target_": "mfulab.models.convolutional.ThreeConvolutions",
        "input_shape": [3, 4, 4],
    }
    make(config({"teacher": "online"}, images, channels_last=True), CPU)
    assert [model.training for model in issued] == [True, False]
    weights = [next(model.parameters()) for model in issued]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
