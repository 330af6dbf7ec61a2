"""Passes beside a step's timing, where its config asks for them: its output's error, its losses, its recompilations."""

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import PrecisionConfig
from mfulab.kernels.formats import format_of
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig
from mfulab.models import execution, workload
from mfulab.models.build import Batch, first_tensor, make_batch

Made = tuple[Callable[..., Any], Callable[[], float]]


def require(config: ProfileStepConfig) -> None:
    """Raises UnsupportedError for a pass that this execution cannot have, before anything is timed."""
    if config.profile.varied_batches and config.execution.mode not in ("eager", "compile"):
        raise UnsupportedError(
            f"profile.varied_batches: execution={config.execution.name} is neither eager nor compile"
        )


def fill(row: ProfileRow, config: ProfileStepConfig, device: torch.device, make_step: Callable[..., Made]) -> None:
    """Fills what was asked for by `profile`; an output that is too far from float64's makes the row incorrect.

    Each pass makes its step anew from the same seed, so that all executions begin with the same weights and batch.
    """
    asked, mode = config.profile, config.workload.mode
    if asked.losses and mode == "training":
        torch.manual_seed(config.seed)
        step, loss = make_step(config, device)
        losses = []
        for _ in range(asked.losses):
            step()
            losses.append(loss())
        row.losses = json.dumps(losses)
        if asked.exact:
            row.exact_losses = json.dumps(exact_losses(config, device))
    if asked.exact and mode == "inference":
        torch.manual_seed(config.seed)
        output = first_tensor(make_step(config, device)[0]())
        row.relative_error, tolerance = error_of(output, config, device)
        if not row.relative_error <= tolerance:  # NaN is wrong, too
            row.status, row.time_s = "incorrect", None
            row.message = f"relative error {row.relative_error:.1e}; at most {tolerance:.1e} is accepted"
    if asked.varied_batches and mode == "inference":
        _count_recompilations(row, config, device)


def exact_losses(config: ProfileStepConfig, device: torch.device) -> list[float]:
    """Losses of the first training steps with the same weights and batch in float64, as torch computes them."""
    torch.manual_seed(config.seed)
    model, batch = workload.make_model(config, device)
    model = model.double().train()
    if batch.inputs.is_floating_point():
        batch = Batch(batch.inputs.double(), batch.targets)
    double = PrecisionConfig(name="fp64", dtype="float64")
    parameters = list(model.parameters())
    step = workload.training_step(model, parameters, batch, config.model.task, config.workload, double, device)
    return [float(step()) for _ in range(config.profile.losses)]


def error_of(output: torch.Tensor, config: ProfileStepConfig, device: torch.device) -> tuple[float, float]:
    """Relative Frobenius error of an output against the model in float64, and the largest that is accepted.

    A model may know its result by another way, `exact(inputs)`. Accepted is what a matmul of the deepest sum among its
    layers may have, once for each layer.
    """
    torch.manual_seed(config.seed)
    model, batch = workload.make_model(config, device)
    with torch.no_grad():
        if callable(known := getattr(model, "exact", None)):
            exact = known(batch.inputs)
        else:
            exact = first_tensor(copy.deepcopy(model).eval().double()(batch.inputs.double()))
    weights = [one for one in model.parameters() if one.ndim > 1]
    deepest = max((one[0].numel() for one in weights), default=1)
    tolerance = max(1, len(weights)) * format_of(config.precision).tolerance(deepest)
    error = torch.linalg.vector_norm(output.double() - exact) / torch.linalg.vector_norm(exact)
    return float(error), tolerance


def _count_recompilations(row: ProfileRow, config: ProfileStepConfig, device: torch.device) -> None:
    """Calls with batch_size, batch_size + 1, … samples, and what torch.compile made anew for them."""
    torch.manual_seed(config.seed)
    model, batch = workload.make_model(config, device)
    model.eval()
    call, count = execution.issue(model, batch, config.execution), config.profile.varied_batches
    sizes = [config.batch_size + more for more in range(count)]
    inputs = [
        make_batch(config.model, size, config.sequence_length, device=device, dtype=batch.inputs.dtype).inputs
        for size in sizes
    ]
    if config.execution.mode == "compile":
        row.graph_breaks = _graph_breaks(model, inputs[0])
    torch.compiler.reset()  # what was compiled while timing must not be found again
    started = _graphs()
    compiled_by = []
    began = time.perf_counter()
    with torch.no_grad():
        for one in inputs:
            before = _graphs()
            call(one)
            compiled_by.append(_graphs() > before)
    if device.type == "cuda":
        torch.cuda.synchronize()
    row.varied_calls, row.varied_s = count, time.perf_counter() - began
    if config.execution.mode == "compile":
        row.graphs, row.recompilations = _graphs() - started, sum(compiled_by[1:])


def _graphs() -> int:
    """Graphs that torch.compile has handed to its compiler in this process, since its last reset."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def _graph_breaks(model: torch.nn.Module, inputs: torch.Tensor) -> int:
    """Places in one call at which torch.compile goes back to Python."""
    from torch._dynamo import explain

    with torch.no_grad():
        return explain(model)(inputs).graph_break_count
