"""Modes in which a model runs: eager, traced, scripted, compiled, or replayed as one CUDA graph."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mfulab.core.errors import UnsupportedError, is_out_of_memory
from mfulab.core.files import scratch
from mfulab.core.groups import ExecutionConfig
from mfulab.core.said import Said
from mfulab.device import is_gpu, require_cuda
from mfulab.models.build import Batch, LogitsOnly

NO_COMPILER = Said("no_compiler")


@contextlib.contextmanager
def empty_cache() -> Iterator[None]:
    """Makes torch.compile start with empty caches while entered. Otherwise compile time would
    depend on which process ran first."""
    with (
        scratch() as folder,
        patch.dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/torch",
            TRITON_CACHE_DIR=f"{folder}/triton",
        ),
    ):
        yield


def arrange(
    model: torch.nn.Module, batch: Batch, execution: ExecutionConfig
) -> tuple[torch.nn.Module, Batch]:
    """Returns the model and its batch, in channels-last memory format if configured. Raises
    UnsupportedError if the inputs are not images."""
    if not execution.channels_last:
        return model, batch
    if batch.inputs.ndim != 4:
        raise UnsupportedError(Said("no_channels"))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = batch.inputs.contiguous(memory_format=torch.channels_last)
    return model, Batch(inputs, batch.targets)


def issue(model: torch.nn.Module, batch: Batch, execution: ExecutionConfig) -> Callable[..., Any]:
    """Returns the model as a callable in the configured mode. Its first calls may compile. Both
    this and the calls can raise UnsupportedError."""
    call: Callable[..., Any] = model
    match execution.mode:
        case "trace" | "script":
            call = _torchscript(model, batch, execution.mode)
        case "compile":
            compiled = torch.compile(model, mode=execution.compile_mode, dynamic=execution.dynamic)
            call = _explained(compiled, "No working C++ compiler", NO_COMPILER)
    if execution.attention == "default":
        return call
    # Selects the attention backend for the forward pass; the backward pass uses the same.
    reason = Said("attention_refused", attention=execution.attention)
    name = execution.attention.upper()
    backend = getattr(SDPBackend, name if name == "MATH" else f"{name}_ATTENTION")
    return _explained(call, "No viable backend", reason, partial(sdpa_kernel, backend))


def _explained(
    call: Callable[..., Any],
    message: str,
    reason: Said,
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Callable[..., Any]:
    """Wraps `call` in a context, and turns a RuntimeError that contains `message` into an
    UnsupportedError with `reason`."""

    def checked(*arguments: Any, **options: Any) -> Any:
        try:
            with context():
                return call(*arguments, **options)
        except RuntimeError as error:
            if message not in str(error):
                raise
            raise UnsupportedError(reason) from error

    return checked


def _torchscript(model: torch.nn.Module, batch: Batch, mode: str) -> Callable[..., Any]:
    """Traces or scripts the model. Raises UnsupportedError if TorchScript cannot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and is measured for comparison
        try:
            if mode == "script":
                return torch.jit.script(model)
            return torch.jit.trace(LogitsOnly(model), (batch.inputs,), check_trace=False)
        except Exception as error:
            if is_out_of_memory(error):  # tracing runs the model
                raise
            raise UnsupportedError(_refusal(error, mode)) from error


def _refusal(error: Exception, mode: str) -> Said:
    """Says why TorchScript rejects a model. Its many kinds of errors are about the model's Python
    code, never about this device."""
    if isinstance(error, OSError) and error.errno is None:  # of `inspect.getsource`
        return Said("jit_no_source", mode=mode)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return Said("jit_cannot", mode=mode, verb=mode, error=lines[0].strip())


def capture(step: Callable[[], torch.Tensor], device: torch.device) -> Callable[[], torch.Tensor]:
    """Returns `step` as a CUDA graph, captured at its first call as torch's notes on whole-network
    capture describe. Every replay overwrites the result. Raises UnsupportedError if it cannot be
    captured."""
    if not is_gpu(device):
        raise UnsupportedError(Said("graph_needs_nvidia"))
    require_cuda(device, "execution=cuda_graph")

    @cache
    def captured() -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            # keeps lazy initialisation and making the optimiser's state out of the graph
            for _ in range(3):
                step()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                return graph, step()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            line = str(error).splitlines()[0]
            raise UnsupportedError(Said("not_captured", error=line)) from error

    def replay() -> torch.Tensor:
        graph, result = captured()
        graph.replay()
        return result

    return replay
