"""Batches from the host: what each source gives, epochs and workers, and what is refused."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig, WorkloadConfig
from mfulab.core.language import verdicts
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models import feeding
from mfulab.models.build import Batch, make_batch
from mfulab.models.feeding import IMAGES, Digits, Mapped, Photographs, feeder, handwritten

IMAGE = ModelConfig(name="m", _target_="torch.nn.Flatten", input_shape=[3, 28, 20])
TOKENS = ModelConfig(
    name="m",
    _target_="torch.nn.Embedding",
    vocabulary_size=50_257,
    sequence_length=8,
    task="language_modeling",
)


def workload(**keys) -> WorkloadConfig:
    return WorkloadConfig(name="w", input="host", **keys)


def fetched(config: ModelConfig, batches: int = 1, **keys) -> list[Batch]:
    batch = make_batch(config, 2)
    fetch, found = feeder(batch, config, workload(**keys), None), []
    for _ in range(batches):
        fetch()
        found.append(Batch(batch.inputs.clone(), batch.targets.clone()))
    return found


@pytest.mark.parametrize("source", ["random", "decode", "digits", "file"])
@pytest.mark.parametrize("workers", [0, 1])
def test_each_source_gives_batches_that_differ_and_look_normalised(source, workers):
    first, second = fetched(IMAGE, 2, loader_source=source, loader_workers=workers)
    assert first.inputs.shape == (2, 3, 28, 20)
    assert not torch.equal(first.inputs, second.inputs)
    assert first.inputs.std() == pytest.approx(1, abs=0.4)
    assert abs(first.inputs.mean()) < 0.8


def test_digits_are_the_real_images_enlarged_with_their_digits():
    images, targets = handwritten()
    data = Digits(
        ModelConfig(name="m", _target_="a.b", task="classification", input_shape=[3, 24, 16])
    )
    for index in (0, 1796, 1797 + 5):
        inputs, target = data[index]
        assert (inputs.shape, target) == ((3, 24, 16), targets[index % 1797])
        assert torch.equal(inputs[0], inputs[2])
        small = inputs[0, ::3, ::2] * images.std() + images.mean()
        torch.testing.assert_close(small, images[index % 1797])


def test_decoded_images_are_crops_of_what_was_stored():
    images = Photographs(IMAGE)
    plain, mirrored = images[0][0], images[IMAGES + 1][0]
    assert plain.shape == mirrored.shape == (3, 28, 20)
    assert torch.equal(images[0][0], plain)
    assert len({one.numpy().tobytes() for one in (images[i][0] for i in range(IMAGES))}) == IMAGES


def test_epochs_end_and_begin_anew():
    found = fetched(IMAGE, 3, loader_source="file", loader_epoch=2)
    assert torch.equal(found[0].inputs, found[2].inputs)  # the same seed draws each epoch's indices
    assert not torch.equal(found[0].inputs, found[1].inputs)


def test_a_file_of_tokens_is_read_as_it_was_written(tmp_path):
    ids = np.arange(24, dtype=np.uint16)
    ids.tofile(tmp_path / "train.bin")
    dataset = Mapped(TOKENS, None, str(tmp_path / "train.bin"))
    inputs, targets = dataset[4]  # of three samples the second
    assert inputs.tolist() == list(range(8, 16))
    assert targets.tolist()[:-1] == list(range(9, 16))
    assert inputs.dtype == torch.int64
    many = TOKENS.model_copy(update={"vocabulary_size": 70_000})
    assert many.sample_bytes() == 32
    assert Mapped(many, 4, None)[0][0].max() < 70_000


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (
            {"loader_prefetch": 4},
            "loader_prefetch=4 with loader_workers=0: only processes prefetch",
        ),
        ({"loader_persistent": True}, "loader_persistent=true with loader_workers=0"),
        ({"loader_file": "a.bin"}, r"loader_file=a\.bin with loader_source=random: give file"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_runs(keys, reason):
    with pytest.raises(ValidationError, match=reason):
        workload(**keys)


def step(path, **more) -> ProfileStepConfig:
    values = {
        "model": {"name": "m", "_target_": "torch.nn.Flatten", "input_shape": [3, 4]},
        "workload": {
            "name": "w",
            "input": "host",
            "loader_source": "file",
            "loader_file": str(path),
        },
        "precision": {"name": "fp32", "dtype": "float32"},
        "execution": {"name": "eager"},
        "batch_size": 1,
    }
    return ProfileStepConfig.model_validate(values | more)


def test_a_missing_or_short_file_is_named_when_it_is_planned(tmp_path):
    """A result of another machine, whose file is not here, is valid nonetheless."""
    path = tmp_path / "data.bin"
    [missing] = list(step(path).missing())[:1]
    assert f"workload.loader_file={path}" in missing
    path.write_bytes(bytes(11))
    [short] = step(path).missing()
    assert "11 bytes" in short
    path.write_bytes(bytes(12))
    assert not list(step(path).missing())


def test_ranks_start_no_workers():
    workers = {"name": "w", "input": "host", "loader_workers": 2}
    with pytest.raises(
        ValidationError, match=r"parallel\.processes=2 with workload\.loader_workers=2"
    ):
        step("", workload=workers, parallel={"processes": 2})


@pytest.mark.parametrize(
    ("config", "keys", "reason"),
    [
        (IMAGE, {"loader_pinned": True}, "loader_pinned=true: only copies to a GPU gain by it"),
        (TOKENS, {"loader_source": "digits"}, "loader_source=digits: digits need a classification"),
        (TOKENS, {"loader_source": "decode"}, "loader_source=decode: JPEGs need images"),
    ],
)
def test_what_this_device_or_model_cannot_do(config, keys, reason):
    with pytest.raises(UnsupportedError, match=reason):
        fetched(config, **keys)


def test_workers_beyond_the_cores_are_said(monkeypatch):
    monkeypatch.setattr(feeding, "usable_cores", lambda: 2)
    assert not feeding.beyond_cores(workload(loader_workers=2))
    assert not feeding.beyond_cores(WorkloadConfig(name="w", loader_workers=8))
    assert "loader_workers=8: more than the 2 cores" in verdicts.message(
        feeding.beyond_cores(workload(loader_workers=8))["message"]
    )
