"""Other frameworks than torch that run a torch model: JAX, TensorFlow and ONNX Runtime, each a mode of execution.

JAX and TensorFlow get the model's layers with their weights in the layout that they prefer, images with their channels
last; ONNX Runtime gets what torch exports. A step takes and gives torch tensors; it ends when its result is there.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from mfulab.hardware.cpu import usable_cores
from mfulab.models.build import Batch
from mfulab.schema.configs import ProfileStepConfig
from mfulab.schema.errors import UnsupportedError

PACKAGES = {
    "jax": ("jax",),
    "tensorflow_eager": ("tensorflow",),
    "tensorflow_function": ("tensorflow",),
    "onnxruntime": ("onnxruntime", "onnxscript"),
}
"""Packages that each mode imports; the extra `frameworks` has them."""


@dataclass(frozen=True)
class Layer:
    """One layer, channels last.

    Attributes:
        kind: of the layer.
        weight: of a convolution [height, width, in, out], of a linear layer [in, out].
        bias: [out], or None.
        stride: of a convolution, (down, right).
        padding: of a convolution on both sides, (rows, columns).
    """

    kind: Literal["convolution", "linear", "relu", "flatten"]
    weight: np.ndarray | None = None
    bias: np.ndarray | None = None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


def load(mode: str) -> None:
    """Imports what a mode of execution needs, so that no clock sees it; torch's own modes need nothing.

    Raises UnsupportedError with the command that installs a missing package.
    """
    for package in PACKAGES.get(mode, ()):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as missing:
            raise UnsupportedError(
                f"execution={mode} needs the package {missing.name}, which is not installed: "
                "make install PYTHON=python EXTRAS=frameworks"
            ) from None


def make_step(
    model: nn.Module, batch: Batch, config: ProfileStepConfig, device: torch.device
) -> Callable[[], torch.Tensor]:
    """The step of `config` in its framework: of training it returns the loss, of inference the output.

    Raises UnsupportedError for what the framework or this project's translation of the model has not.
    """
    mode, workload = config.execution.mode, config.workload
    _require(config, device)
    threads = torch.get_num_threads()
    if mode == "onnxruntime":
        from mfulab.models.framework_onnx import inference_step

        return inference_step(model, batch.inputs, threads)
    layers, images = layers_of(model, batch.inputs), channels_last(batch.inputs)
    targets = batch.targets.numpy()
    if mode == "jax":
        from mfulab.models import framework_jax

        if workload.mode == "inference":
            return framework_jax.inference_step(layers, images)
        return framework_jax.training_step(layers, images, targets, workload)
    from mfulab.models import framework_tensorflow

    compiled = mode == "tensorflow_function"
    framework_tensorflow.use_threads(threads)
    if workload.mode == "inference":
        return framework_tensorflow.inference_step(layers, images, compiled)
    return framework_tensorflow.training_step(layers, images, targets, workload, compiled)


def _require(config: ProfileStepConfig, device: torch.device) -> None:
    workload, precision, mode = config.workload, config.precision, config.execution.mode
    if device.type != "cpu":
        raise UnsupportedError(f"execution={mode} runs on the CPU here; choose device=cpu")
    if precision.dtype != "float32" or precision.autocast or precision.tf32:
        raise UnsupportedError(f"execution={mode} has fp32 alone, not precision={precision.name}")
    if workload.mode not in ("training", "inference") or (mode == "onnxruntime" and workload.mode == "training"):
        raise UnsupportedError(f"execution={mode} has no workload.mode={workload.mode}")
    if (
        mode == "jax" and (config.device.threads or usable_cores()) < usable_cores()
    ):  # XLA has no number of threads to set
        raise UnsupportedError(
            f"execution=jax computes with all cores, not with device.threads={config.device.threads}"
        )
    plain = type(workload)(name=workload.name, mode=workload.mode, learning_rate=workload.learning_rate)
    other = [key for key, value in workload if value != getattr(plain, key)]
    if other:
        named = ", ".join(f"workload.{key}={getattr(workload, key)}" for key in other)
        raise UnsupportedError(f"execution={mode} has the plain step with Adam alone, not {named}")


def layers_of(model: nn.Module, inputs: torch.Tensor) -> list[Layer]:
    """The layers of a model that is a chain of convolutions, linear layers, ReLU and flattening, channels last.

    Raises UnsupportedError that names the first operation which is none of these.
    """
    traced = torch.fx.symbolic_trace(nn.Sequential(model))
    modules = dict(traced.named_modules())
    found: list[Layer] = []
    images: tuple[int, ...] | None = None  # [channels, height, width] that were flattened, until a linear layer
    value = inputs[:1]
    with torch.no_grad():
        for node in traced.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            part = modules[node.target] if node.op == "call_module" else None
            layer = _layer(part, node, images)
            if layer is None:
                name = type(part).__name__ if part is not None else getattr(node.target, "__name__", node.target)
                raise UnsupportedError(f"{type(model).__name__} has {name}, which is not translated for this framework")
            if layer.kind == "flatten" and value.ndim == 4:
                images = tuple(value.shape[1:])
            elif layer.kind == "linear":
                images = None
            value = part(value) if part is not None else value.flatten(1) if layer.kind == "flatten" else value.relu()
            found.append(layer)
    return found


def _layer(part: nn.Module | None, node: Any, images: Sequence[int] | None) -> Layer | None:
    if isinstance(part, nn.Conv2d):
        if part.groups != 1 or set(part.dilation) != {1} or isinstance(part.padding, str):
            return None
        weight, bias = _arrays(part)
        return Layer("convolution", weight.transpose(2, 3, 1, 0), bias, part.stride, part.padding)  # type: ignore[arg-type]
    if isinstance(part, nn.Linear):
        weight, bias = _arrays(part)
        if images is not None:  # flattened channels last here, channels first by torch
            weight = weight.reshape(-1, *images).transpose(0, 2, 3, 1).reshape(len(weight), -1)
        return Layer("linear", weight.T, bias)
    if isinstance(part, nn.ReLU) or node.target in (torch.relu, nn.functional.relu, "relu"):
        return Layer("relu")
    if isinstance(part, nn.Flatten) or (node.target in (torch.flatten, "flatten") and node.args[1:] == (1,)):
        return Layer("flatten")
    return None


def _arrays(part: nn.Conv2d | nn.Linear) -> tuple[np.ndarray, np.ndarray | None]:
    return part.weight.detach().numpy(), None if part.bias is None else part.bias.detach().numpy()


def channels_last(images: torch.Tensor) -> np.ndarray:
    """[batch, channels, height, width] as an array [batch, height, width, channels]; others as they are."""
    return (images.permute(0, 2, 3, 1) if images.ndim == 4 else images).contiguous().numpy()


def channels_first(output: torch.Tensor) -> torch.Tensor:
    """A view of a framework's output as torch has it: images with their channels first."""
    return output.permute(0, 3, 1, 2) if output.ndim == 4 else output
