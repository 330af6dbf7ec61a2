"""Other tools that count a model's forward pass, each behind one function, converted to FLOPs of two a multiply-add."""

from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

OtherCounter = Literal["torch", "fvcore", "calflops", "ptflops", "thop", "deepspeed"]


class OtherCount(NamedTuple):
    """Result of a tool for one forward pass."""

    printed: float  # the tool's own number
    unit: str  # of that number: `FLOP`, `MAC`, `MAC a sample`, or `MAC, called FLOP`
    flops: float  # the same, two a multiply-add
    uncounted: dict[str, int]  # operators that the tool itself says it passed over, with their calls


def counter_version(counter: OtherCounter) -> str | None:
    """The installed version; None if the tool is not installed."""
    try:
        return version(counter)
    except PackageNotFoundError:
        return None


def count_by(counter: OtherCounter, model: nn.Module, inputs: torch.Tensor) -> OtherCount:
    """Has a tool count one forward pass of a model that returns a tensor, in evaluation mode, without its own prints.

    Raises:
        ImportError: it is not installed.
        Exception: whatever the tool raises on a model that it cannot count.
    """
    with redirect_stdout(StringIO()):
        printed, unit, *uncounted = _counted(counter, model, inputs)
    factor = {"FLOP": 1, "MAC a sample": 2 * len(inputs)}.get(unit, 2)
    return OtherCount(printed, unit, factor * printed, dict(*uncounted))


def _counted(counter: OtherCounter, model: nn.Module, inputs: torch.Tensor) -> tuple[Any, ...]:
    match counter:
        case "torch":
            from torch.utils.flop_counter import FlopCounterMode

            # Without no_grad: torch's counter is used as its documentation shows it.
            with FlopCounterMode(display=False) as mode:
                model(inputs)
            return mode.get_total_flops(), "FLOP"
        case "fvcore":
            from fvcore.nn import FlopCountAnalysis

            analysis = FlopCountAnalysis(model, inputs)
            analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
            return analysis.total(), "MAC, called FLOP", analysis.unsupported_ops()
        case "calflops":
            from calflops import calculate_flops

            silent = {"print_results": False, "print_detailed": False, "output_as_string": False}
            return calculate_flops(model, args=[inputs], **silent)[0], "FLOP"
        case "ptflops":
            from ptflops import get_model_complexity_info

            silent = {"as_strings": False, "print_per_layer_stat": False, "verbose": False}
            shape = tuple(inputs.shape[1:])
            macs, _ = get_model_complexity_info(model, shape, input_constructor=lambda shape: inputs, **silent)
            if macs is None:
                raise RuntimeError("ptflops gave no number and no reason")
            return macs, "MAC a sample"
        case "thop":
            from thop import profile

            return profile(model, inputs=(inputs,), verbose=False)[0], "MAC"
        case "deepspeed":
            from deepspeed.profiling.flops_profiler import get_model_profile

            return get_model_profile(model, args=[inputs], print_profile=False, as_string=False)[0], "FLOP"
