"""Time that the jobs of a sweep take, in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mfulab.core.language.quantities import duration
from mfulab.lab.runtime import budget

OPTIONS = {"gpus": "gpu", "cpus-per-task": "cpus_per_task", "mem": "mem_mb"}  # of sbatch


def in_words(seconds: float, budget_min: float) -> str:
    """The time of all jobs, and what a budget, infinite without one, makes of it."""
    most = 60 * budget_min
    sentence = f"about {duration(seconds)}"
    if not math.isfinite(most):
        return sentence
    goes_on = "goes on measuring the least precise runs until"
    if seconds > most:
        goes_on = "ends it after"
    return f"{sentence}; budget_min={most / 60:g} {goes_on} {duration(most)}"


def outlook(
    batches: Sequence[Sequence[Any]],
    devices: Mapping[str, int],
    rest: budget.Rest,
    on_gpu: bool,
) -> str:
    """The time of a dry run's jobs, and what they would ask a cluster for.

    `batches` are the resources of each job of a batch; `devices` says by folder how many a run
    holds; `rest` is what is to do.
    """
    longest = max(batches, key=_minutes)
    asked = {"time": _minutes(longest)}  # a device takes one at a time
    for option, name in OPTIONS.items():
        asked[option] = max(resources.get(name) or 0 for resources in longest)
    if not asked["mem"]:
        return f"about {duration(rest.estimate_s())} on this machine"
    options = " ".join(f"--{option}={value}" for option, value in asked.items() if value)
    held_s = 0.0
    for folder, count in devices.items():
        held_s += count * (rest.worker_s + rest.runs_s[folder])
    hours = f"{held_s / 3600:.2g} {'GPU-hours' if on_gpu else 'hours of a CPU'}"
    return f"about {hours} in {len(batches):,} jobs; runs in the longest: {len(longest)}, by sbatch {options}"


def _minutes(batch: Sequence[Any]) -> int:
    return sum(resources["runtime"] for resources in batch)
