"""Other frameworks that run a torch model: JAX and TensorFlow by its layers, ONNX Runtime by torch's export."""

import importlib
import logging
from collections.abc import Callable

import torch
from torch import nn

from mfulab.core.configs import ModelStepConfig
from mfulab.core.errors import UnsupportedError
from mfulab.device.cpu import usable_cores
from mfulab.models.build import Batch, LogitsOnly
from mfulab.models.framework_layers import channels_last, layers_of

PACKAGES = {
    "jax": ("jax",),
    "tensorflow_eager": ("tensorflow",),
    "tensorflow_function": ("tensorflow",),
    "onnxruntime": ("onnxruntime", "onnxscript"),
}
"""Packages that each mode imports; the extra `frameworks` has them."""


def load(mode: str) -> None:
    """Imports what a mode needs before any clock runs; UnsupportedError tells the command that installs it."""
    for package in PACKAGES.get(mode, ()):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as missing:
            raise UnsupportedError(
                f"execution={mode} needs the package {missing.name}, which is not installed: "
                "make install PYTHON=python EXTRAS=frameworks"
            ) from None


def make_step(
    model: nn.Module, batch: Batch, config: ModelStepConfig, device: torch.device
) -> Callable[[], torch.Tensor]:
    """The step of `config` in its framework: the loss of training, else the output. UnsupportedError for what it
    lacks."""
    mode, workload = config.execution.mode, config.workload
    _require(config, device)
    threads = torch.get_num_threads()
    if mode == "onnxruntime":
        import onnxruntime

        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names packages that are not needed here
        # The graph that torch exports: no Python of the model is left in it.
        exported = torch.onnx.export(LogitsOnly(model).eval(), (batch.inputs,), dynamo=True, verbose=False)
        assert exported is not None  # only an export to a file gives nothing
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        graph = exported.model_proto.SerializeToString()
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        given = {session.get_inputs()[0].name: batch.inputs.numpy()}
        return lambda: torch.from_numpy(session.run(None, given)[0])
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


def _require(config: ModelStepConfig, device: torch.device) -> None:
    workload, precision, mode = config.workload, config.precision, config.execution.mode
    if device.type != "cpu":
        raise UnsupportedError(f"execution={mode} runs on the CPU here; choose device=cpu")
    if precision.dtype != "float32" or precision.autocast or precision.tf32:
        raise UnsupportedError(f"execution={mode} has fp32 alone, not precision={precision.name}")
    if workload.mode not in ("training", "inference") or (mode == "onnxruntime" and workload.mode == "training"):
        raise UnsupportedError(f"execution={mode} has no workload.mode={workload.mode}")
    threads = config.device.threads or usable_cores()
    if mode == "jax" and threads < usable_cores():  # XLA's threads cannot be set
        raise UnsupportedError(f"execution=jax computes with all cores, not with device.threads={threads}")
    plain = type(workload)(name=workload.name, mode=workload.mode, learning_rate=workload.learning_rate)
    if named := ", ".join(f"workload.{key}={value}" for key, value in workload if value != getattr(plain, key)):
        raise UnsupportedError(f"execution={mode} has the plain step with Adam alone, not {named}")
