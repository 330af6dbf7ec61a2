"""Columns that a table adds to what was measured: who asked for it, values of the run's config, the join's results."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def of_config(path: str) -> Any:
    """A column that holds a value of the run's config, described there; `path` is `group.key`."""
    return Field(None, json_schema_extra={"config": path})


def of_link(description: str) -> Any:
    """A column that names what a run is joined with; recordings keep it."""
    return Field(None, description=description, json_schema_extra={"link": True})


class Joined(BaseModel):
    """Columns of every table beyond its row. A measurement's own stand in its folder's joined.py."""

    model_config = ConfigDict(extra="forbid")

    experiment: str | None = Field(None, description="The experiment that asked for the run.")
    recorded: bool | None = Field(None, description="True for a row of a recording, false for one measured here.")


class Work(BaseModel):
    """FLOPs and bytes of a step ÷ its time."""

    tflop_s: float | None = Field(None, description="FLOPs that the model needs ÷ time.")
    peak_tflop_s: float | None = Field(None, description="The computed peak of the format that was used.")
    arithmetic_intensity: float | None = Field(None, description="FLOPs ÷ bytes moved.")


class Headroom(BaseModel):
    """Milliseconds of a step between its time and the peak: together they are the step, each nanosecond once."""

    input_wait_ms: float | None = Field(None, description="Waiting for the next batch.")
    idle_ms: float | None = Field(None, description="The device had nothing to do.")
    communication_ms: float | None = Field(None, description="Communication that no compute overlaps.")
    copies_ms: float | None = Field(None, description="Copies that neither compute nor communication overlaps.")
    graph_ms: float | None = Field(None, description="Kernels of a replayed CUDA graph, whose operators are unknown.")
    page_faults_ms: float | None = Field(
        None, description="Page faults × what one takes, on a CPU; out of all operators."
    )
    other_operators_ms: float | None = Field(None, description="Operators that multiply nothing.")
    recomputation_ms: float | None = Field(None, description="Matmuls computed again for a checkpoint.")
    uncounted_ms: float | None = Field(None, description="Matmuls of unknown FLOPs.")
    clock_ms: float | None = Field(None, description="What a clock below the peak's adds to the useful part.")
    tile_padding_ms: float | None = Field(None, description="What whole tiles add at the peak.")
    best_below_peak_ms: float | None = Field(None, description="What the best matmul measured takes beyond the peak.")
    matmuls_below_best_ms: float | None = Field(
        None, description="What matmuls take beyond the best; negative where they ran above the peak."
    )
    useful_ms: float | None = Field(None, description="FLOPs that the model needs ÷ peak: MFU × the step.")


class Verdict(BaseModel):
    """Where a step loses most, and why; keys and numbers, of which the page makes sentences."""

    mfu_note: str | None = Field(None, description="Key: why a row has no MFU, or a doubtful one.")
    verdict: str | None = Field(None, description="Key: cause of the largest part of the time that is lost.")
    verdict_reason: str | None = Field(None, description="Key of the sentence that says why.")
    verdict_numbers: str | None = Field(None, description="JSON: numbers of that sentence.")
    verdict_rung: str | None = Field(None, description="Rung below the ladder's largest drop.")
    verdict_rung_above: str | None = Field(None, description="Rung above it.")
    expected_mfu_percent: float | None = Field(
        None, description="Tensor pipe active × mean clock ÷ the peak's clock: MFU as the hardware saw it."
    )
    verdict_flags: str | None = Field(None, description="JSON: reasons to look at the row again: keys and numbers.")


class Rank(BaseModel):
    """A rank of a profiled job, in ranks.csv behind the columns that say which run it is of."""

    rank: int | None = Field(None, description="Number of the process.")
    time_ms: float | None = Field(None, description="Its median step.")
    mfu_percent: float | None = Field(None, description="MFU under its own peak; ranks share work and peaks equally.")
    memory_bytes: int | None = Field(None, description="Its peak.")
    communication_ms: float | None = Field(None, description="Union of its collectives, traced pass.")
    exposed_ms: float | None = Field(None, description="Of these, what no compute overlaps.")
    transfer_ms: float | None = Field(None, description="Collectives as long as the shortest rank's.")
    waiting_ms: float | None = Field(None, description="What they take beyond that: waiting for others.")
