"""Distillation: a frozen teacher that is run in each step, or once."""

import pytest
import torch
from pydantic import ValidationError

from mfulab.core.groups import PrecisionConfig, WorkloadConfig
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models.build import Batch
from mfulab.models.step import distillation_loss, make_optimizer, teaching, training_step

FP32 = PrecisionConfig(name="fp32", dtype="float32")


@pytest.mark.parametrize(("kind", "calls"), [("online", 4), ("cached", 1)])
def test_a_student_nears_its_frozen_teacher(kind, calls):
    torch.manual_seed(0)
    student, frozen = torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)
    batch, called = Batch(torch.randn(16, 8), torch.randint(3, (16,))), []
    frozen.register_forward_hook(lambda *arguments: called.append(1))
    workload = WorkloadConfig(name="w", teacher=kind, learning_rate=0.05)
    before = [each.clone() for each in frozen.parameters()]
    linear = {"name": "linear", "_target_": "torch.nn.Linear", "input_shape": [8]}
    given = {
        "model": linear,
        "batch_size": 16,
        "workload": workload,
        "precision": FP32,
        "execution": {"name": "eager"},
    }
    config = ProfileStepConfig.model_validate(given)
    teacher = teaching(frozen, batch, config)
    optimizer = make_optimizer(list(student.parameters()), config)
    step = training_step(config, student, optimizer, batch, teacher=teacher)
    losses = [float(step()) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert len(called) == calls
    assert all(torch.equal(old, new) for old, new in zip(before, frozen.parameters(), strict=True))


def test_the_loss_is_zero_for_equal_outputs_and_counts_each_sample_alike():
    logits = torch.randn(4, 5)
    assert distillation_loss(logits, logits) == pytest.approx(0, abs=1e-6)
    other = torch.randn(4, 5)
    single = torch.stack([distillation_loss(logits[i : i + 1], other[i : i + 1]) for i in range(4)])
    assert distillation_loss(logits, other) == pytest.approx(float(single.mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (
            {"mode": "inference", "teacher": "online"},
            "teacher=online with mode=inference: only training",
        ),
        ({"teacher": "cached", "input": "host"}, "teacher=cached with input=host"),
    ],
)
def test_what_cannot_be_distilled_is_refused(keys, reason):
    with pytest.raises(ValidationError, match=reason):
        WorkloadConfig(name="w", **keys)
