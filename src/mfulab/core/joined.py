"""Columns that a table has beyond its rows: each declared once, with type, description and place in the run's config.

The unit stands in a column's name, as in `core/rows.py`. What measures imports none of this: a new joined column
measures nothing again.
"""

from typing import Any

from pydantic import BaseModel, Field


def from_config(path: str) -> Any:
    """A column that repeats the value at `path` of the run's config, whose description it takes."""
    return Field(None, json_schema_extra={"config": path})


def from_plan(description: str) -> Any:
    """A column that names what the run is joined with."""
    return Field(None, description=description, json_schema_extra={"plan": True})


class Joined(BaseModel):
    """Columns of every table."""

    experiment: str | None = Field(None, description="Experiment that planned the run.")
    recorded: bool = Field(False, description="Whether the row comes from a recording in results/reference/.")


class Headroom(BaseModel):
    """Parts of a step from the peak down to MFU, as `mfu/headroom.py` divides it; they sum to the step."""

    input_wait_ms: float | None = Field(None, description="Of a step: waiting for the next batch.")
    idle_ms: float | None = Field(None, description="Of a step: the device had nothing to do.")
    communication_ms: float | None = Field(None, description="Of a step: communication that no compute covers.")
    copies_ms: float | None = Field(None, description="Of a step: copies that nothing covers.")
    graph_ms: float | None = Field(None, description="Of a step: CUDA graphs, whose kernels belong to no operator.")
    page_faults_ms: float | None = Field(None, description="Of a step: pages of memory that the system had to give.")
    other_operators_ms: float | None = Field(None, description="Of a step: operators that multiply nothing.")
    recomputation_ms: float | None = Field(None, description="Of a step: a checkpoint's second forward pass.")
    uncounted_ms: float | None = Field(None, description="Of a step: matmuls whose FLOPs are not known.")
    clock_ms: float | None = Field(None, description="Of a step: what a clock below the peak's adds to matmuls.")
    tile_padding_ms: float | None = Field(None, description="Of a step: what whole tiles add to matmuls.")
    best_below_peak_ms: float | None = Field(
        None, description="Of a step: what the best measured speed of these matmuls lacks to the peak."
    )
    matmuls_below_best_ms: float | None = Field(
        None, description="Of a step: what matmuls lack to the best; below zero where they ran above the peak."
    )
    useful_ms: float | None = Field(None, description="Of a step: the model's FLOPs at the peak; ÷ the step it is MFU.")


class Verdict(BaseModel):
    """The likely cause of a run's losses, as keys and numbers."""

    verdict: str | None = Field(None, description="Key of the likely cause of the losses (docs/measuring.md).")
    verdict_reason: str | None = Field(None, description="Key of the sentence that gives the reason.")
    verdict_numbers: str | None = Field(None, description="JSON: the numbers in that sentence.")
    verdict_rung: str | None = Field(None, description="Column of the ladder's rung to which it drops most.")
    verdict_rung_above: str | None = Field(None, description="Column of the rung from which it drops.")
    expected_mfu_percent: float | None = Field(
        None, description="Tensor pipe active × mean SM clock ÷ the clock in the spec peak."
    )
    verdict_flags: str | None = Field(None, description="JSON: reasons to doubt the row, as keys and numbers.")
