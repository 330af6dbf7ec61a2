"""Runs a torch model in other frameworks: JAX and TensorFlow by its layers, ONNX Runtime by torch's
export."""

import importlib
import logging
from collections.abc import Callable

import torch
from torch import nn

from mfulab.core.configs import ModelStepConfig
from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.device.cpu import usable_cores
from mfulab.models.build import Batch, LogitsOnly
from mfulab.models.framework_layers import channels_last, layers_of

PACKAGES = {
    "jax": ("jax",),
    "tensorflow_eager": ("tensorflow",),
    "tensorflow_function": ("tensorflow",),
    "onnxruntime": ("onnxruntime", "onnxscript"),
}
"""Packages that each mode imports; the extra `frameworks` installs them."""


def load(mode: str) -> None:
    """Imports what a mode needs before any timing starts. Raises UnsupportedError if a package is
    missing; the message says how to install it."""
    for package in PACKAGES.get(mode, ()):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as missing:
            raise UnsupportedError(
                Said("framework_not_installed", mode=mode, package=missing.name)
            ) from None


def make_step(
    model: nn.Module, batch: Batch, config: ModelStepConfig, device: torch.device
) -> Callable[[], torch.Tensor]:
    """Returns the step of `config` in its framework. In training it returns the loss, else the
    output. Raises UnsupportedError for anything that the framework cannot do."""
    mode = config.execution.mode
    workload = config.workload
    _require(config, device)
    threads = torch.get_num_threads()
    if mode == "onnxruntime":
        import onnxruntime

        # it warns about packages that are not needed here
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        # The exported graph contains no Python code of the model.
        exported = torch.onnx.export(
            LogitsOnly(model).eval(), (batch.inputs,), dynamo=True, verbose=False
        )
        assert exported is not None  # only an export to a file returns None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        graph = exported.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        inputs = {session.get_inputs()[0].name: batch.inputs.numpy()}
        return lambda: torch.from_numpy(session.run(None, inputs)[0])
    layers = layers_of(model, batch.inputs)
    images = channels_last(batch.inputs)
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


def _require(config: ModelStepConfig, device: torch.device) -> None:
    """Raises UnsupportedError for anything in the config that the framework cannot do."""
    workload = config.workload
    precision = config.precision
    mode = config.execution.mode
    if device.type != "cpu":
        raise UnsupportedError(Said("framework_on_cpu", mode=mode))
    if precision.dtype != "float32" or precision.autocast or precision.tf32:
        raise UnsupportedError(Said("framework_in_fp32", mode=mode, precision=precision.name))
    modes = ("inference",) if mode == "onnxruntime" else ("training", "inference")
    if workload.mode not in modes:
        raise UnsupportedError(
            Said("framework_without_mode", mode=mode, workload=str(workload.mode))
        )
    threads = config.device.threads or usable_cores()
    if mode == "jax" and threads < usable_cores():  # the number of XLA's threads cannot be set
        raise UnsupportedError(Said("jax_takes_all_cores", threads=str(threads)))
    plain = type(workload)(
        name=workload.name, mode=workload.mode, learning_rate=workload.learning_rate
    )
    changed = [f"workload.{key}={value}" for key, value in workload if value != getattr(plain, key)]
    if changed:
        raise UnsupportedError(Said("framework_adam_alone", mode=mode, given=", ".join(changed)))
