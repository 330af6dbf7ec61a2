"""Inference by ONNX Runtime, of the graph that torch exports: no Python of the model is left in it."""

import logging
from collections.abc import Callable

import onnxruntime
import torch

from mfulab.models.build import LogitsOnly


def inference_step(model: torch.nn.Module, inputs: torch.Tensor, threads: int) -> Callable[[], torch.Tensor]:
    """The forward pass of the exported graph."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names packages that are not needed here
    exported = torch.onnx.export(LogitsOnly(model).eval(), (inputs,), dynamo=True, verbose=False)
    assert exported is not None  # only an export to a file gives nothing
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    graph = exported.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: inputs.numpy()}
    return lambda: torch.from_numpy(session.run(None, given)[0])
