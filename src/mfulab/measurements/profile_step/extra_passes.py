"""Passes after a step's timing that its config may ask for: its output's error, its losses, its recompilations."""

import copy
import itertools
import json
import time

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import PrecisionConfig
from mfulab.device import APPLE, synchronise
from mfulab.kernels.formats import format_of
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig
from mfulab.models import execution
from mfulab.models import step as steps
from mfulab.models.build import Batch, first_tensor, make_batch


def require(config: ProfileStepConfig) -> None:
    """Raises UnsupportedError for a pass that this execution cannot have, before anything is timed."""
    if config.profile.varied_batches and config.execution.mode not in ("eager", "compile"):
        raise UnsupportedError(f"profile.varied_batches: execution={config.execution.name}: neither eager nor compile")
    if config.device.type == APPLE and (config.profile.exact or config.profile.losses):
        raise UnsupportedError("profile.exact and profile.losses: torch.mps has no float64 to compare with")


def fill(row: ProfileRow, config: ProfileStepConfig, device: torch.device) -> None:
    """Fills what `profile` asks for; an output that is too far from float64's makes the row incorrect.

    Each pass makes its step anew from the same seed, so that all executions begin with the same weights and batch. In
    float64 torch computes eagerly. A model may know its output in another way, `exact(inputs)`; accepted is the error
    that a matmul of the deepest sum among its layers may have, once for each layer.
    """
    wanted, mode = config.profile, config.workload.mode
    if wanted.varied_batches and mode == "inference":
        _count_recompilations(row, config, device)
    if wanted.losses and mode == "training":
        torch.manual_seed(config.seed)
        step = steps.make(config, device)
        row.losses = json.dumps([step.loss(step.call()) for _ in range(wanted.losses)])
        if wanted.exact:
            torch.manual_seed(config.seed)
            model, batch = steps.make_model(config, device)
            model = model.double().train()
            if batch.inputs.is_floating_point():
                batch = Batch(batch.inputs.double(), batch.targets)
            double = config.model_copy(update={"precision": PrecisionConfig(name="fp64", dtype="float64")})
            train = steps.training_step(double, model, list(model.parameters()), batch, device)
            row.exact_losses = json.dumps([float(train()) for _ in range(wanted.losses)])
    if wanted.exact and mode == "inference":
        torch.manual_seed(config.seed)
        output = first_tensor(steps.make(config, device).call())
        torch.manual_seed(config.seed)
        model, batch = steps.make_model(config, device)
        with torch.no_grad():
            if callable(known := getattr(model, "exact", None)):
                exact = known(batch.inputs)
            else:
                exact = first_tensor(copy.deepcopy(model).eval().double()(batch.inputs.double()))
        weights = [one for one in model.parameters() if one.ndim > 1]
        deepest = max((one[0].numel() for one in weights), default=1)
        tolerance = max(1, len(weights)) * format_of(config.precision).tolerance(deepest)
        row.relative_error = float(torch.linalg.vector_norm(output.double() - exact) / torch.linalg.vector_norm(exact))
        if not row.relative_error <= tolerance:  # NaN is wrong, too
            row.status, row.time_s = "incorrect", None
            row.message = f"relative error {row.relative_error:.1e}; at most {tolerance:.1e} is accepted"


def _count_recompilations(row: ProfileRow, config: ProfileStepConfig, device: torch.device) -> None:
    """Calls with batch_size, batch_size + 1, … samples, and counts what torch.compile made anew for them."""
    from torch._dynamo import explain
    from torch._dynamo.utils import counters

    torch.manual_seed(config.seed)
    model, batch = steps.make_model(config, device)
    model.eval()
    call, count = execution.issue(model, batch, config.execution), config.profile.varied_batches
    sizes = [config.batch_size + more for more in range(count)]
    inputs = [
        make_batch(config.model, size, config.sequence_length, device=device, dtype=batch.inputs.dtype).inputs
        for size in sizes
    ]
    if config.execution.mode == "compile":
        with torch.no_grad():  # a break is a place in one call at which torch.compile goes back to Python
            row.graph_breaks = explain(model)(inputs[0]).graph_break_count
    torch.compiler.reset()  # what was compiled while timing must not be found again
    made = [counters["stats"]["unique_graphs"]]  # graphs handed to the compiler, before the calls and after each
    began = time.perf_counter()
    with torch.no_grad():
        for one in inputs:
            call(one)
            made.append(counters["stats"]["unique_graphs"])
    synchronise(device)
    row.varied_calls, row.varied_s = count, time.perf_counter() - began
    if config.execution.mode == "compile":
        row.graphs = made[-1] - made[0]
        row.recompilations = sum(before < after for before, after in itertools.pairwise(made[1:]))
