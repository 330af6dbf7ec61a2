"""Kernel-busy from a Chrome trace: the union of what the GPU executed ÷ wall time, split by kind, with its gaps.

The wall time is that of the annotated steps up to the final synchronisation: tools that divide by first kernel start to
last kernel end hide the gaps at the edges.
"""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mfulab.samplers.reading import Reading, Readings
from mfulab.timing.statistics import Stats

# The annotation around the traced steps and the synchronisation after them.
STEPS = "mfulab traced steps"
SOURCE = "torch.profiler trace"
_COMMUNICATION = ("nccl", "rccl", "mscclpp", "nvshmem")
UNITS = {
    "kernel_busy_percent": "%",
    "compute_busy_percent": "%",
    "copy_percent": "%",
    "communication_percent": "%",
    "idle_percent": "%",
    "launch_gaps_per_step": "",
    "launch_gap_s": "s",
}
Interval = tuple[float, float]


@dataclass(frozen=True)
class Activity:
    """One thing that the GPU executed, in µs of the trace's clock; `kind` is compute, copy or communication."""

    kind: str
    name: str
    begin: float
    end: float


def load(path: Path) -> dict[str, Any]:
    """A Chrome trace as torch.profiler exports it, gzip or not."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return json.load(file)


def activities(trace: Mapping[str, Any]) -> list[Activity]:
    """What the GPU executed: kernels, copies and memory sets; the GPU's echoes of host annotations are left out."""
    found = []
    for event in trace["traceEvents"]:
        category, name = event.get("cat"), str(event.get("name", ""))
        if event.get("ph") != "X" or category not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        if category != "kernel":
            kind = "copy"
        else:
            kind = "communication" if name.lower().startswith(_COMMUNICATION) else "compute"
        found.append(Activity(kind, name, float(event["ts"]), float(event["ts"]) + float(event["dur"])))
    return found


def traced_span(trace: Mapping[str, Any]) -> Interval | None:
    """Begin and end of the annotated steps on the host, µs."""
    for event in trace["traceEvents"]:
        if event.get("name") == STEPS and event.get("cat") == "user_annotation":
            return float(event["ts"]), float(event["ts"]) + float(event["dur"])
    return None


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals merged where they touch or overlap, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The summed lengths of disjoint intervals."""
    return sum(end - begin for begin, end in intervals)


def gaps(busy: Sequence[Interval], span: Interval) -> list[float]:
    """Lengths of the stretches of `span` outside the disjoint, ordered `busy` intervals, the edges included."""
    edges = [span[0], *(edge for interval in busy for edge in interval), span[1]]
    return [end - begin for begin, end in zip(edges[::2], edges[1::2], strict=True) if end > begin]


def clip(intervals: Iterable[Interval], span: Interval) -> list[Interval]:
    """The parts of the intervals inside `span`."""
    inside = ((max(begin, span[0]), min(end, span[1])) for begin, end in intervals)
    return [(begin, end) for begin, end in inside if end > begin]


def shares(found: Sequence[Activity], span: Interval, steps: int) -> Readings:
    """The shares of `span` in which the GPU was busy, by kind, and the gaps between launches.

    A copy or communication that overlaps compute is hidden by it and counts as compute; communication hides copies. The
    four shares (compute, communication, copy, idle) sum to 100 %.
    """
    wall, window_s = span[1] - span[0], (span[1] - span[0]) / 1e6
    covered, part, before = [], {}, 0.0
    for kind in ("compute", "communication", "copy"):
        covered += clip(((one.begin, one.end) for one in found if one.kind == kind), span)
        so_far = length(union(covered))
        part[kind], before = 100 * (so_far - before) / wall, so_far
    idle = gaps(union(covered), span)
    values = {
        "kernel_busy_percent": 100 * before / wall,
        "compute_busy_percent": part["compute"],
        "copy_percent": part["copy"],
        "communication_percent": part["communication"],
        "idle_percent": 100 * sum(idle) / wall,
        "launch_gaps_per_step": len(idle) / steps,
        "launch_gap_s": Stats(idle).median / 1e6 if idle else 0.0,
    }
    return {name: Reading(value, UNITS[name], SOURCE, window_s) for name, value in values.items()}


def kernel_table(found: Sequence[Activity]) -> list[dict[str, object]]:
    """A row for each kernel and copy, the longest first: calls, summed seconds, share of all device time."""
    grouped: dict[tuple[str, str], list[float]] = {}
    for one in found:
        grouped.setdefault((one.kind, one.name), []).append((one.end - one.begin) / 1e6)
    total = sum(map(sum, grouped.values()))
    rows: list[dict[str, object]] = [
        {
            "kernel": name,
            "kind": kind,
            "calls": len(times),
            "time_s": sum(times),
            "share_percent": 100 * sum(times) / total,
        }
        for (kind, name), times in sorted(grouped.items(), key=lambda item: -sum(item[1]))
        if total > 0
    ]
    return rows
