"""Columns of a window's time, the same for a device and for a CPU's host thread."""

import re
from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from mfulab.core.said import Said
from mfulab.device.samplers.reading import Reading, Readings
from mfulab.tracing.attribution import COMPILED, FUSED
from mfulab.tracing.intervals import Intervals
from mfulab.tracing.trace import Activities, HostCalls, Indices, Trace

SOURCE = "profiler trace"
OF_KERNELS = (
    "kernel_busy_percent",
    "compute_busy_percent",
    "copy_percent",
    "communication_percent",
    "idle_percent",
    "launch_gaps_per_step",
    "launch_gap_s",
)
OF_OPERATORS = ("matmul_percent", "other_operators_percent")
LOADER = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__")
# Kinds of a window's time; each nanosecond counts once, for the first kind that covers it: products
# of known FLOPs, their recomputation for a checkpoint, products of unknown FLOPs, other operators,
# compute kernels that a graph launched, and the rest.
SPENT = (
    "products",
    "recomputed",
    "uncounted",
    "others",
    "graph",
    "communication",
    "copies",
    "input_wait",
    "idle",
)
MULTIPLYING = SPENT[:3]
Values = Mapping[str, float | None]


class KernelRow(TypedDict):
    """A kernel or copy of a window, with its share of all device time."""

    kernel: str
    kind: str
    calls: int
    time_s: float
    share_percent: float


def readings(
    values: Values, source: str = SOURCE, window_s: float | None = None, reason: Said | None = None
) -> Readings:
    """Values by column, with their units; `reason` explains values that are None."""
    return {
        name: Reading(value, _unit(name), source, window_s, reason)
        for name, value in values.items()
    }


def _unit(column: str) -> str:
    if column.endswith("_percent"):
        return "%"
    if column.endswith("_s"):
        return "s"
    return ""


def multiplying(spent: dict[str, int]) -> int:
    """Nanoseconds in products of all kinds."""
    return sum(spent[kind] for kind in MULTIPLYING)


def operator_name(name: str) -> str:
    """Name of an operator; all compiled code has the same one."""
    if name.startswith(COMPILED):
        return FUSED
    return name


def waits(trace: Trace) -> Intervals:
    """Intervals in which the host waited for its DataLoader."""
    return trace.host.where(trace.named(LOADER.search)[trace.host.name])


def lengths_by_name(
    names: list[str], spans: Activities | HostCalls, chosen: Indices
) -> dict[str, list[int]]:
    """Durations (ns) of the chosen events in order of begin, per name without arguments."""
    lengths: dict[str, list[int]] = {}
    for index in chosen[np.argsort(spans.begin[chosen], kind="stable")].tolist():
        name = names[spans.name[index]].partition("(")[0]
        lengths.setdefault(name, []).append(int(spans.end[index] - spans.begin[index]))
    return lengths
