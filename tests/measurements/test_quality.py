"""Small models trained on real images: what each way changes, and what its row says."""

import json
import math

import pytest
import torch
from support.slow import few
from torch import nn

from mfulab.core.groups import DeviceConfig
from mfulab.measurements.quality import QualityConfig
from mfulab.measurements.quality import measure as training
from mfulab.measurements.quality.measure import make_cheaper, measure
from mfulab.models.convolutional import small_digits
from mfulab.models.feeding import handwritten
from mfulab.models.quantised import weight_bytes

CPU = torch.device("cpu")
TRAINED, HELD_OUT = training.digits(CPU)


@pytest.fixture(scope="module")
def whole():
    torch.manual_seed(0)
    model = small_digits()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "EPOCHS", 2)
        training.train(model, TRAINED, 0)
    return model


def test_the_images_are_digits_and_none_is_trained_on_and_held_out():
    assert (TRAINED.inputs.shape, HELD_OUT.inputs.shape) == ((1200, 1, 8, 8), (597, 1, 8, 8))
    assert (float(TRAINED.inputs.min()), float(TRAINED.inputs.max())) == (0, 1)
    assert all(set(batch.targets.tolist()) == set(range(10)) for batch in (TRAINED, HELD_OUT))
    seen = {tuple(image) for image in TRAINED.inputs.flatten(1).tolist()}
    assert not seen & {tuple(image) for image in HELD_OUT.inputs.flatten(1).tolist()}
    assert [len(values) for values in handwritten()] == [1797, 1797]


def test_trained_weights_know_digits_and_random_ones_do_not(whole):
    assert (
        training.accuracy_percent(whole, HELD_OUT)
        > 60
        > 30
        > training.accuracy_percent(small_digits(), HELD_OUT)
    )


@pytest.mark.parametrize(
    "way", ["none", "masked", "two_of_four", "structured", "static_int8", "dynamic_int8"]
)
def test_what_is_made_of_the_trained_model_has_its_weights(whole, way):
    cheaper = make_cheaper(way, whole, TRAINED, 0)
    before = training.accuracy_percent(whole, HELD_OUT)
    assert training.accuracy_percent(cheaper, HELD_OUT) > before - 20
    if way in ("masked", "two_of_four"):
        assert float((cheaper[4].weight == 0).double().mean()) == pytest.approx(0.5, abs=0.01)
        assert weight_bytes(cheaper) == weight_bytes(whole)
    elif way != "none":
        assert weight_bytes(cheaper) < 0.6 * weight_bytes(whole)
    assert not (whole[4].weight == 0).any()  # the whole model stays as it was


@pytest.mark.parametrize("pooled", [0, 1])
def test_repeated_pooling_adds_no_module_to_other_networks(pooled):
    """So their recorded times are still of the same modules."""
    expected = [nn.Sequential, (nn.Identity, nn.MaxPool2d)[pooled], nn.Sequential, nn.Flatten]
    expected += [nn.Linear, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in small_digits(pooled=pooled)] == expected
    assert len(small_digits(pooled=2)) == len(expected) + 1


def test_a_teacher_is_seven_tenths_of_the_loss_at_four_degrees(monkeypatch, whole):
    asked = []

    def loss(output, taught, temperature):
        asked.append(temperature)
        return torch.zeros(())

    monkeypatch.setattr(training, "distillation_loss", loss)
    monkeypatch.setattr(training, "EPOCHS", 1)
    monkeypatch.setattr(
        torch.optim, "Adam", lambda parameters, lr: torch.optim.SGD(parameters, lr=0.01)
    )
    few = type(TRAINED)(TRAINED.inputs[:64], TRAINED.targets[:64])
    student, alone = small_digits(), small_digits()
    alone.load_state_dict(student.state_dict())
    start = student[6].bias.clone()
    training.train(student, few, 0, whole)
    training.train(alone, few, 0)
    assert asked == [4.0]
    torch.testing.assert_close(student[6].bias - start, 0.3 * (alone[6].bias - start))


@pytest.mark.parametrize(
    ("way", "flops", "bytes_"),
    few(
        [
            ("repeatedly_pooled", 201_216, 90_408),
            ("pooled", 299_520, 287_016),
            ("student", 0.1, 0.1),
            ("bf16", 1_135_104, 536_724),
        ]
    ),
)
def test_a_row_holds_both_models_and_an_interval(monkeypatch, way, flops, bytes_):
    monkeypatch.setattr(training, "EPOCHS", 1)
    config = QualityConfig(compression=way, trainings=2, device=DeviceConfig(type="cpu", threads=1))
    done = measure(config, None)
    row = done.row
    assert (row.whole_flops, row.whole_weight_bytes) == (1_135_104, 1_073_448)
    if way == "student":
        assert (
            row.flops < flops * row.whole_flops,
            row.weight_bytes < bytes_ * row.whole_weight_bytes,
        ) == (True, True)
    else:
        assert (row.flops, row.weight_bytes) == (flops, bytes_)
    found = row.accuracy_change_points
    assert found == pytest.approx(row.accuracy_percent - row.whole_accuracy_percent)
    assert row.time_low_percent <= row.time_percent <= row.time_high_percent
    assert [sample["training"] for sample in done.samples] == [0, 1]
    assert row.change_half_points >= 0
    seen = row.validation_loss
    assert seen == pytest.approx(sum(sample["cheaper_loss"] for sample in done.samples) / 2)
    expected = [pytest.approx(sum(sample["whole_loss"] for sample in done.samples) / 2, abs=1e-5)]
    assert json.loads(row.whole_validation_losses) == expected


def test_the_validation_loss_falls_by_epoch_and_is_that_of_images_held_out(monkeypatch):
    monkeypatch.setattr(training, "EPOCHS", 3)
    torch.manual_seed(0)
    model = small_digits()
    before = training.validation_loss(model, HELD_OUT)
    losses = training.train(model, TRAINED, 0, held_out=HELD_OUT)
    assert before == pytest.approx(math.log(10), abs=0.2)  # of ten digits, all as likely
    assert before > losses[0] > losses[2]
    assert losses[2] == pytest.approx(training.validation_loss(model, HELD_OUT))
    assert training.train(small_digits(), TRAINED, 0) == []


def test_no_interval_from_one_training(monkeypatch):
    monkeypatch.setattr(training, "EPOCHS", 1)
    row = measure(QualityConfig(trainings=1, device=DeviceConfig(type="cpu", threads=1)), None).row
    found = (row.compression, row.change_half_points, row.accuracy_change_points)
    assert found == ("none", None, 0)
