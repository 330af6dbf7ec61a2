"""Attribution of traced time: to operators that multiply, to others, or to none.

MFU against the measured ceiling is the share of time that matmuls take, times how fast they are while they run: the
two say whether to look at the other operators or at the products' shapes.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch.autograd import DeviceType

from mfulab.flops.operators import FORMULAS
from mfulab.samplers.reading import Reading, Readings, missing
from mfulab.tracing import trace

SOURCE = "torch.profiler operators"
UNITS = {"matmul_percent": "%", "other_operators_percent": "%"}
# What torch.compile makes of products on a CPU; the counter sees the model before it is compiled.
COMPILED_PRODUCTS = (
    *("mkldnn::_linear_pointwise", "mkldnn::_convolution_pointwise", "mkldnn::_convolution_pointwise_"),
    *("mkldnn::_convolution_transpose_pointwise", "mkl::_mkl_linear"),
)
PRODUCTS = frozenset([*FORMULAS, *COMPILED_PRODUCTS])
COMPILED, FUSED = "## Call CompiledFxGraph", "compiled, fused operators"
PRODUCT = "product"  # no operator goes by a name without "::"
LEAST_ATTRIBUTED = 0.9  # of the kernels' time; a CUDA graph's kernels belong to no operator


def operator_readings(events: Iterable[Any], steps: int, on_gpu: bool) -> tuple[Readings, str | None]:
    """Shares of the traced steps' wall time, and the other operators that take most of it.

    Args:
        events: torch.profiler's FunctionEvents. On a CPU an operator's time is its own and its callees' on the step's
            thread, on a GPU that of the kernels which it launched, on any thread.
        steps: how many steps were traced, for the source.
        on_gpu: whose time.

    Returns:
        `matmul_percent` and `other_operators_percent`, and JSON of the five longest others: name → share in percent.
        An operator goes by its outermost name: batch_norm, and not what it is made of.
    """
    events = [event for event in events if event.device_type == DeviceType.CPU]
    wall = sum(event.cpu_time_total for event in events if event.name == trace.STEPS)
    owners: dict[int, str | None] = {}
    times: Counter[str | None] = Counter()
    for event in events:
        if on_gpu:
            times[_owner(event, owners)] += event.self_device_time_total
        elif _under_steps(event):
            times[_owner(event, owners)] += event.self_cpu_time_total
    if not wall or not sum(times.values()):
        return missing(UNITS, SOURCE, "the trace holds no time of any operator"), None
    whole = sum(times.values())
    attributed = 1 - times.pop(None, 0) / whole
    if on_gpu and attributed < LEAST_ATTRIBUTED:
        return missing(UNITS, SOURCE, "kernels were launched by a graph, and belong to no operator"), None
    if times[FUSED] and not times[PRODUCT]:
        return missing(UNITS, SOURCE, "compiled code holds its matmuls itself, and no operator tells them apart"), None
    products = times.pop(PRODUCT, 0)
    shares = {"matmul_percent": 100 * products / wall, "other_operators_percent": 100 * sum(times.values()) / wall}
    longest = {str(name): round(100 * time / wall, 1) for name, time in times.most_common(5) if time}
    readings = {name: Reading(share, "%", f"{SOURCE}, {steps} steps", wall / 1e6) for name, share in shares.items()}
    return readings, json.dumps(longest) if longest else None


def _owner(event: Any, owners: dict[int, str | None]) -> str | None:
    """PRODUCT within an operator that multiplies, else the outermost operator around the event, None outside of any."""
    if event.id not in owners:
        around = None if event.cpu_parent is None else _owner(event.cpu_parent, owners)
        owners[event.id] = PRODUCT if PRODUCT in (around, _kind(event.name)) else around or _kind(event.name)
    return owners[event.id]


def _kind(name: str) -> str | None:
    if name in PRODUCTS:
        return PRODUCT
    if name.startswith(COMPILED):
        return FUSED
    is_operator = "::" in name and not name.startswith(("autograd::", "torch::autograd::"))
    return name if is_operator else None


def _under_steps(event: Any) -> bool:
    while event.cpu_parent is not None:
        event = event.cpu_parent
    return bool(event.name == trace.STEPS)
