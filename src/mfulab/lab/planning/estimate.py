"""Estimated time of a sweep's jobs, in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mfulab.core.terminal_language import terminal_texts
from mfulab.lab.runtime import budget

OPTIONS = {"gpus": "gpu", "cpus-per-task": "cpus_per_task", "mem": "mem_mb"}  # of sbatch


def in_words(seconds: float, budget_min: float) -> str:
    """Sentence with the time of all jobs and the effect of the budget; an infinite `budget_min` is
    none."""
    text = terminal_texts("sweep")
    budget_s = 60 * budget_min
    if not math.isfinite(budget_s):
        return text("about", seconds=seconds)
    effect = "goes_on"
    if seconds > budget_s:
        effect = "ends"
    return text(effect, seconds=seconds, budget_min=budget_min, budget_s=budget_s)


def outlook(
    batches: Sequence[Sequence[Any]],
    devices: Mapping[str, int],
    rest: budget.Rest,
    on_gpu: bool,
) -> str:
    """Sentence with the time of a dry run's jobs, and what they would request from a cluster.

    `batches` holds the resources of each job of each batch; `devices` the number of devices per
    folder of a run; `rest` the work to do.
    """
    longest = max(batches, key=_minutes)
    values = {"time": _minutes(longest)}  # a device runs one job at a time
    for option, name in OPTIONS.items():
        values[option] = max(resources.get(name) or 0 for resources in longest)
    text = terminal_texts("sweep")
    if not values["mem"]:
        return text("about_here", seconds=rest.estimate_s())
    options = " ".join(f"--{option}={value}" for option, value in values.items() if value)
    held_s = 0.0
    for folder, count in devices.items():
        held_s += count * (rest.worker_s + rest.runs_s[folder])
    return text(
        "gpu_hours" if on_gpu else "cpu_hours",
        hours=f"{held_s / 3600:.2g}",
        jobs=len(batches),
        runs=len(longest),
        options=options,
    )


def _minutes(batch: Sequence[Any]) -> int:
    return sum(resources["runtime"] for resources in batch)
