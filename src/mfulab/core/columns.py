"""Columns that tables add to measured rows: the experiment, values of the run's config, and results
of the join."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mfulab.core.rows import column, json_column


def of_config(path: str) -> Any:
    """Declares a column that holds a value of the run's config, with the description given there;
    `path` is `group.key`."""
    return Field(None, json_schema_extra={"config": path})


def of_link(description: str) -> Any:
    """Declares a column that names a run to join with; recordings keep it."""
    return Field(None, description=description, json_schema_extra={"link": True})


class Joined(BaseModel):
    """Columns that every table adds to its rows. Those of a single measurement are in joined.py of
    its folder."""

    model_config = ConfigDict(extra="forbid")

    experiment: str | None = column("Experiment that asked for the run.")
    recorded: bool | None = column("True for a row of a recording, false for one measured here.")


class WorkColumns(BaseModel):
    """FLOPs and bytes of a step, divided by its time."""

    tflop_s: float | None = column("FLOPs that the model needs ÷ time.")
    peak_tflop_s: float | None = column("Computed peak of the number format that was used.")
    arithmetic_intensity: float | None = column("FLOPs ÷ bytes moved.")


class BudgetColumns(BaseModel):
    """Rungs between tensor pipe and HFU (%), and parts of a step's time (ms). The parts add up to
    the step."""

    issued_percent: float | None = column(
        "Tensor-core time of the instructions, at their own rates ÷ time."
    )
    executed_percent: float | None = column(
        "Operations that matmul kernels execute, padding included ÷ time ÷ peak."
    )
    input_wait_ms: float | None = column("Waiting for the next batch.")
    idle_ms: float | None = column("Time in which the device had nothing to do.")
    communication_ms: float | None = column("Communication that no compute overlaps.")
    copies_ms: float | None = column("Copies that neither compute nor communication overlaps.")
    graph_ms: float | None = column(
        "Kernels of a replayed CUDA graph, whose operators are unknown."
    )
    page_faults_ms: float | None = column(
        "Page faults × time of one, on a CPU; taken out of all operators."
    )
    other_operators_ms: float | None = column(
        "Operators other than matmuls, convolutions and attention."
    )
    recomputation_ms: float | None = column("Matmuls computed again for a checkpoint.")
    uncounted_ms: float | None = column("Matmuls of unknown FLOPs.")
    clock_ms: float | None = column("Time that a clock below the peak's adds to the useful part.")
    tile_padding_ms: float | None = column(
        "Time that padding to whole tiles, channels and heads adds at the peak."
    )
    slow_instructions_ms: float | None = column(
        "Time that instructions below the full rate add at the peak's clock."
    )
    best_below_peak_ms: float | None = column(
        "Time that the best measured matmul takes beyond the peak."
    )
    matmuls_below_best_ms: float | None = column(
        "Time that matmuls take beyond the best; negative above the peak."
    )
    useful_ms: float | None = column("FLOPs that the model needs ÷ peak: MFU × the step.")


class VerdictColumns(BaseModel):
    """The largest loss of a step and its cause, as keys and numbers that the page turns into
    sentences."""

    mfu_note: str | None = column("Key: reason why a row has no MFU, or a doubtful one.")
    verdict: str | None = column("Key: cause of the largest part of the time that is lost.")
    verdict_reason: str | None = column("Key of the sentence that explains the verdict.")
    verdict_numbers: str | None = json_column("numbers in the sentence of `verdict_reason`.")
    expected_mfu_percent: float | None = column(
        "OFU: tensor pipe active × mean clock ÷ peak clock."
    )
    ofu_percent: float | None = column(
        "OFU without what padding and instructions below the full rate take of it."
    )
    verdict_flags: str | None = json_column("reasons to look at the row again: keys and numbers.")


class Rank(BaseModel):
    """A rank of a profiled job. In ranks.csv, columns that identify the run come first."""

    rank: int | None = column("Number of the process in the job, from 0.")
    time_ms: float | None = column("Median step of the rank.")
    mfu_percent: float | None = column(
        "MFU of the rank; work and peaks are shared equally among ranks."
    )
    memory_bytes: int | None = column("Peak memory of the rank.")
    communication_ms: float | None = column(
        "Union of the rank's collectives in a step, traced pass."
    )
    exposed_ms: float | None = column(
        "Communication of a step that no compute overlaps, traced pass."
    )
    transfer_ms: float | None = column(
        "Time of a step's collectives if each is as short as the shortest rank's."
    )
    waiting_ms: float | None = column(
        "Time that collectives of a step take beyond the transfer: waiting for others."
    )
