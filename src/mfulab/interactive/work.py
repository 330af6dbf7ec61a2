"""Work of a window's steps: FLOPs counted, given by the user or counted of a batch, or a reason for none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mfulab.device.samplers.reading import Reading
from mfulab.interactive.kinds import Cost
from mfulab.interactive.phases import Phases
from mfulab.interactive.steps import Step, known

HOW_TO_GIVE = (
    "give flops_per_step=, such as mfulab.flops_of(model, batch) of the model before it was wrapped"
    " (or batch=, the model's arguments, for a replayed CUDA graph)"
)


@dataclass(frozen=True)
class Work:
    """Cost of the steps whose FLOPs are known, their number and their seconds; `reading` says how, or why none are."""

    total: Cost | None
    steps: int
    seconds: float
    reading: Reading


def given_work(steps: Sequence[Step], flops_per_step: float) -> Work:
    """Work of steps whose FLOPs were given."""
    total = int(flops_per_step) * len(steps)
    return Work(Cost(total, total), len(steps), _seconds(steps), Reading(flops_per_step, "", "given"))


def work_of_batch(steps: Sequence[Step], models: Sequence[torch.nn.Module], batch: Any) -> Work:
    """Work of steps that each compute `batch`, counted on tensors without data."""
    from mfulab.flops.count import CountError
    from mfulab.interactive.without_data import count_call

    if not models:
        return _unknown("batch= needs model= as well")
    try:
        cost = count_call(models[0], batch, backward=models[0].training)
    except CountError as error:
        return _unknown(f"{error}; give flops_per_step=")
    reading = Reading(cost.model, "", "counted of `batch` on tensors without data")
    return Work(sum((cost for _ in steps), Cost()), len(steps), _seconds(steps), reading)


def counted_work(steps: Sequence[Step], phases: Phases) -> Work:
    """Work of steps as a counter saw it."""
    if phases.failure:
        return _unknown(f"the counter gave up ({phases.failure}); {HOW_TO_GIVE}")
    sure = known(steps)
    if not sure and phases.known.differing:
        return _unknown(f"{phases.known.differing}; {HOW_TO_GIVE}")
    if not sure:
        return _unknown(f"no step of a kind that was counted; {HOW_TO_GIVE}")
    total = sum((step.cost for step in sure if step.cost is not None), Cost())
    if not total.model:
        return _unknown(f"no operator with a formula ran in the steps that were counted; {HOW_TO_GIVE}")
    parts = [f"operators of {phases.known.counted} kinds of phases, each counted once"]
    if derived := phases.known.derived:
        parts.append(f"{derived} kinds follow from counted ones of other lengths")
    if left := len(steps) - len(sure):
        parts.append(f"{left} of {len(steps)} steps are of kinds that were not counted and left out of MFU")
    return Work(total, len(sure), _seconds(sure), Reading(total.model / len(sure), "", "; ".join(parts)))


def _unknown(reason: str) -> Work:
    return Work(None, 0, 0.0, Reading(None, "", "counted", reason=reason))


def _seconds(steps: Sequence[Step]) -> float:
    return sum(step.seconds for step in steps)
