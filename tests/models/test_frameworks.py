"""Models in other frameworks: the same layers, outputs and losses as torch's."""

import importlib.util

import numpy as np
import pytest
import torch
from support.said import refused
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models import framework_layers, frameworks
from mfulab.models.step import make

CPU = torch.device("cpu")
SMALL = {
    "name": "small",
    "_target_": "mfulab.models.convolutional.DigitCNN",
    "input_shape": [1, 28, 28],
}
# Those that are installed, which the extra `frameworks` does; torch itself, so that the seed is
# tested without them.
INSTALLED = ["eager"] + [
    mode
    for mode, packages in frameworks.PACKAGES.items()
    if all(importlib.util.find_spec(package) is not None for package in packages)
]


def config(mode: str, **changes) -> ProfileStepConfig:
    values = {
        "model": SMALL,
        "batch_size": 2,
        "workload": {"name": "inference", "mode": "inference"},
        "precision": {"name": "fp32", "dtype": "float32"},
        "execution": {"name": mode, "mode": mode},
    }
    return ProfileStepConfig.model_validate({**values, **changes})


def made(mode: str, **changes):
    torch.manual_seed(0)
    return make(config(mode, **changes), CPU)


def computed(layers: list[framework_layers.Layer], values: np.ndarray) -> np.ndarray:
    """The layers in NumPy, by definition."""
    for layer in layers:
        if layer.kind == "convolution":
            rows, columns = layer.padding
            padded = np.pad(values, ((0, 0), (rows, rows), (columns, columns), (0, 0)))
            windows = np.lib.stride_tricks.sliding_window_view(
                padded, layer.weight.shape[:2], axis=(1, 2)
            )
            windows = windows[:, :: layer.stride[0], :: layer.stride[1]]
            values = np.einsum("nyxchw,hwco->nyxo", windows, layer.weight)
        elif layer.kind == "linear":
            values = values @ layer.weight
        elif layer.kind == "relu":
            values = values.clip(min=0)
        else:
            values = values.reshape(len(values), -1)
        values = values if layer.bias is None else values + layer.bias
    return values


@pytest.mark.parametrize(
    "model",
    [
        nn.Conv2d(3, 5, 3, stride=2, padding=1),
        nn.Sequential(
            nn.Conv2d(3, 4, 3, bias=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * 6 * 5, 7),
            nn.Linear(7, 2),
        ),
    ],
    ids=["convolution", "chain"],
)
def test_layers_with_their_channels_last_give_what_the_model_gives(model):
    images = torch.randn(2, 3, 8, 7)
    output = computed(
        framework_layers.layers_of(model, images), framework_layers.channels_last(images)
    )
    assert torch.allclose(
        framework_layers.channels_first(torch.from_numpy(output)), model(images), atol=1e-5
    )


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (nn.Sequential(nn.BatchNorm2d(3)), "BatchNorm2d"),
        (nn.Conv2d(3, 3, 3, groups=3), "Conv2d"),
    ],
)
def test_what_is_not_translated_is_named(model, named):
    with refused(UnsupportedError, "layer_not_translated", layer=named):
        framework_layers.layers_of(model, torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": {"name": "bf16", "dtype": "bfloat16"}}, "fp32 alone, not precision=bf16"),
        (
            {"workload": {"name": "t", "gradient_clipping": 1.0}},
            r"not workload\.gradient_clipping=1\.0",
        ),
        ({"workload": {"name": "t", "optimizer": "sgd"}}, r"not workload\.optimizer=sgd"),
    ],
)
def test_what_a_framework_has_not_is_said_before_anything_is_made(changes, said):
    with pytest.raises(UnsupportedError, match=said):
        made("jax", **changes)


def test_jax_takes_all_cores(monkeypatch):
    monkeypatch.setattr(frameworks, "usable_cores", lambda: 8)
    with refused(UnsupportedError, "jax_takes_all_cores", threads="2"):
        made("jax", device={"name": "cpu", "type": "cpu", "threads": 2})


def test_onnx_runtime_does_not_train():
    with pytest.raises(UnsupportedError, match=r"onnxruntime has no workload\.mode=training"):
        made("onnxruntime", workload={"name": "training"})


@pytest.mark.parametrize("mode", INSTALLED)
def test_outputs_and_losses_are_torch_s(mode):
    assert torch.allclose(made(mode).call(), made("eager").call(), atol=1e-4)
    if mode == "onnxruntime":
        return
    curves = []
    for execution in (mode, "eager"):
        step = made(execution, workload={"name": "training"})
        curves.append([step.loss(step.call()) for _ in range(4)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
