"""Rows of runs: closed and typed, every column with its unit and meaning; None is "not measured", an empty cell."""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

Percent = Annotated[float, Field(ge=0)]


def column(description: str) -> Any:
    """A column that is empty until it is measured, with what it means."""
    return Field(None, description=description)


MEDIAN_TIME = column("Median over all processes of each one's median, slow states of the machine included.")
MACHINE_COST = column("Time that neighbours and the machine's states added on a CPU: `median_time_s` ÷ `time_s` − 1.")
EXECUTED_RATIO = column("Operations that matmul kernels execute ÷ FLOPs counted of them, by shapes and kernels' names.")
ISSUED_RATIO = column("Full-rate operations that fill the matmul kernels' tensor-core time ÷ FLOPs counted of them.")
MISALIGNED = column("JSON: the matmul that padding a side helps most: side, padded, ms, best_ms, rate in %.")
TIME_CI_LOW = column("Lower end of the 95 % confidence interval of `time_s`, from the spread between processes.")
Status = Literal["ok", "out_of_memory", "unsupported", "incorrect", "failed", "not_measured"]
NOT_MEASURED: Status = "not_measured"  # for the budget, which the message names


# Columns that may be below zero; those that may be infinite, where a format overflows, and are then shown empty.
SIGNED = {"accuracy_change_points", "deviation_percent", "difference_points", "loss", "temperature_c"}
UNBOUNDED = {"loss", "max_absolute_error", "printed", "flops", "deviation_percent"}
SMALLEST, LARGEST = 1e-30, 1e30  # of any quantity but zero; what lies beyond is a broken file
OF_A_FORMAT = ("largest", "last", "smallest")  # how columns begin that hold a format's own limits
LONGEST_MESSAGE = 2000  # characters; a log has the rest


class Row(BaseModel):
    """Columns with which every row begins. Units stand in the names; an empty cell was not measured."""

    model_config = ConfigDict(extra="forbid")

    hardware: str = Field("", description="Slug of the device; empty if none is needed.")
    run: str = Field("", description="Name of the run: its axes, and what differs from the defaults.")
    status: Status = Field("ok", description="`ok`, or why there is no measurement; `message` says more.")
    message: str = Field("", description="Reason why the status is not ok, or which values are empty for what reason.")
    commit: str = Field("", description="Git commit of the measuring code, with `-dirty` where the tree was changed.")
    started_at: str = Field("", description="Start of the run by ISO 8601, UTC.")
    process_s: float | None = column("Wall time of the run's process, imports included.")
    measured_s: float | None = column("Time inside warm-up and measured windows.")

    @classmethod
    def of(cls, config: Any, **values: Any) -> Self:
        """A row that holds the axes of a run's config, of a group its name, and `values`, which come first."""
        axes = {axis: getattr(config, axis) for axis in config.axes if axis in cls.model_fields}
        return cls(**{axis: getattr(value, "name", value) for axis, value in axes.items()} | values)


class TimedRow(Row):
    """A row of a measurement that several processes time, apart in time; the tables make one row of theirs."""

    replicates: int | None = column("Processes whose measurements count.")
    left_out_replicates: int | None = column("Processes left out: they met a slow machine, and two or more did not.")
    between_spread_percent: float | None = column("Standard deviation of the processes' times, relative to their size.")
    process_times_s: str | None = column("JSON: time of each process that counts, in the order of the replicates.")
    precision_percent: float | None = column("Half the 95 % confidence interval, relative: the precision reached.")
    disturbed_replicates: int | None = column("Processes that count although they met a slow machine; intervals widen.")
    slowdown: float | None = column("Time of the machine's probe ÷ the best here; of the slowest process that counts.")
    disturbed_windows: int | None = column("Windows, or rounds of a matmul, that count although disturbed.")
    repeated_windows: int | None = column("Windows measured again because the machine was disturbed.")
    probe_s: float | None = column("Time spent on probing the machine's state.")
    probes: str | None = column("JSON: states of the machine: Unix time, seconds of the probe's matmul and copy.")


def is_in_range(value: Any) -> bool:
    """True for zero and for what a quantity in base units may be; false for infinity and NaN."""
    return not value or SMALLEST <= abs(value) <= LARGEST


def impossible(row: Row, now: datetime) -> str | None:
    """A value that no measurement can have written: a number out of range, a date to come; None without one."""
    for name, value in row.model_dump(exclude_none=True).items():
        if isinstance(value, str) and (type(row).model_fields[name].description or "").startswith("JSON"):
            try:
                json.loads(value)
            except (ValueError, RecursionError) as error:
                return f"{name}={value[:40]!r}: not JSON ({error})"
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            continue
        if abs(value) == math.inf and (name in UNBOUNDED or name.endswith("_error")):
            continue
        may_be_tiny = name == "loss" or name.endswith("_error")
        if not is_in_range(value) and not ((abs(value) < 1 and may_be_tiny) or name.startswith(OF_A_FORMAT)):
            return f"{name}={str(value)[:24]}: out of range"  # an integer may be too large for a float
        if value < 0 and name not in SIGNED:
            return f"{name}={value:g}: below zero"
    try:
        at = datetime.fromisoformat(row.started_at) if row.started_at else now
    except ValueError:
        return f"started_at={row.started_at[:40]}: no date"
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return f"started_at={row.started_at}: a date to come" if at > now + timedelta(days=1) else None
