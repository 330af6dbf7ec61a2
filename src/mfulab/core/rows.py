"""Rows of runs: typed, without unknown columns, each column with its unit and meaning. None means
"not measured" and is an empty cell."""

import math
import re
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from mfulab.core.json_text import parse_json
from mfulab.core.said import Said

Percent = Annotated[float, Field(ge=0)]


def column(description: str) -> Any:
    """Declares a column that is empty until it is measured; `description` says what it means."""
    return Field(None, description=description)


def json_column(description: str) -> Any:
    """Declares a column of JSON text, empty until it is measured. Readers validate the JSON."""
    return Field(None, description=f"JSON: {description}", json_schema_extra={"json": True})


def counter_column(description: str) -> Any:
    """Declares a column that no figure, verdict or command reads. Tables hold it as a key of their
    column `counters`; the run's `row.csv` has it as a column."""
    return Field(None, description=description, json_schema_extra={"counter": True})


COUNTERS = "counters"  # the column of a table that holds all counter columns as JSON


OTHERS = column("CPU time of other processes meanwhile, percent of all CPUs.")
MEDIAN_TIME = column(
    "Median over all processes of each one's median, slow states of the machine included."
)
MACHINE_COST = column(
    "Time that neighbours and the machine's states added on a CPU: `median_time_s` ÷ `time_s` − 1."
)
EXECUTED_RATIO = column(
    "Operations that matmul kernels execute ÷ FLOPs counted of them, by shapes and kernels' names."
)
ISSUED_RATIO = column(
    "Full-rate operations that fill the matmul kernels' tensor-core time ÷ FLOPs counted of them."
)
MISALIGNED = json_column(
    "the matmul that padding a side helps most: side, padded, ms, best_ms, rate in %."
)
TIME_CI_LOW = column(
    "Lower end of the 95 % confidence interval of `time_s`, from the spread between processes."
)
Status = Literal["ok", "out_of_memory", "unsupported", "incorrect", "failed", "not_measured"]
NOT_MEASURED: Status = "not_measured"  # for lack of budget, see `ended_by`


# Columns that may be negative.
SIGNED = {
    "accuracy_change_points",
    "deviation_percent",
    "difference_points",
    "loss",
    "temperature_c",
}
# Columns that may be infinite, where a format overflows; they are shown empty then.
UNBOUNDED = {"loss", "max_absolute_error", "printed", "flops", "deviation_percent"}
# A device's peaks and ceilings, which are denominators: empty or above zero.
PEAK = re.compile(r"(computed|datasheet|max_clock|measured|swept)_(.+_)?(tflop|gb)_s")
SMALLEST = 1e-30
LARGEST = 1e30  # of any nonzero quantity; a value beyond means a broken file
OF_A_FORMAT = ("largest", "last", "smallest")  # prefixes of columns with a format's own limits


class Row(BaseModel):
    """Columns common to all rows. Units are in the names; an empty cell was not measured."""

    model_config = ConfigDict(extra="forbid")

    hardware: str = Field("", description="Slug of the device; empty if none is needed.")
    run: str = Field(
        "", description="Name of the run: its axes, and what differs from the defaults."
    )
    status: Status = Field(
        "ok", description="`ok`, or why there is no measurement; `message` says more."
    )
    message: str = Field(
        "",
        description="Reason why the status is not ok, or which values are empty for what reason:"
        " a text, or a key of sentences and its numbers as JSON.",
    )
    ended_by: str | None = json_column(
        "what ended the run from outside, or left it out: a key of sentences, and its numbers."
    )
    device_uuid: str = Field(
        "", description="Identifiers of the GPUs that the run could use; empty on a CPU."
    )
    host: str = Field(
        "", description="Name of the computer that ran it; of several processes each one's."
    )
    commit: str = Field(
        "",
        description="Git commit of the measuring code, with `-dirty` where the tree was changed.",
    )
    started_at: str = Field("", description="Start of the run by ISO 8601, UTC.")
    process_s: float | None = column("Wall time of the run's process, imports included.")
    measured_s: float | None = column("Time inside warm-up and measured windows.")

    @classmethod
    def of(cls, config: Any, **values: Any) -> Self:
        """Builds a row from the axes of a run's config, a group by its name. `values` override the
        axes."""
        axes = {}
        for axis in config.axes:
            if axis in cls.model_fields:
                axes[axis] = getattr(config, axis)
        return cls(**{axis: getattr(value, "name", value) for axis, value in axes.items()} | values)


class TimedRow(Row):
    """A row of a measurement that is timed by several processes at different times; the tables
    merge their rows into one."""

    replicates: int | None = column("Processes whose measurements count.")
    left_out_replicates: int | None = column(
        "Processes left out: they met a slow machine, and two or more did not."
    )
    between_spread_percent: float | None = counter_column(
        "Standard deviation of the processes' times, relative to their size."
    )
    process_times_s: str | None = json_column(
        "time of each process that counts, in the order of the replicates."
    )
    process_cards: str | None = json_column(
        "GPU of each of these processes, in their order; empty on a CPU and for a job of several."
    )
    precision_percent: float | None = column(
        "Half the 95 % confidence interval, relative: the precision reached."
    )
    disturbed_replicates: int | None = column(
        "Processes that count although they met a slow machine; intervals widen."
    )
    slowdown: float | None = column(
        "Time of the machine's probe ÷ the best here; of the slowest process that counts."
    )
    disturbed_windows: int | None = counter_column(
        "Windows, or rounds of a matmul, that count although disturbed."
    )
    repeated_windows: int | None = counter_column(
        "Windows measured again because the machine was disturbed."
    )
    probe_s: float | None = counter_column("Time spent on probing the machine's state.")
    probes: str | None = json_column(
        "states of the machine: Unix time, seconds of the probe's matmul and copy."
    )


LONGEST_TEXT = 4000  # characters of a cell that is not JSON; the longest messages take half
LEAST_AHEAD = timedelta(days=1)  # of a clock that is reported; time zones and drift are less
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_AHEAD = timedelta(days=366)  # of a clock; a later date is rejected as broken


def is_in_range(value: Any) -> bool:
    """True for zero and for magnitudes that a quantity in base units can have; False for infinity
    and NaN."""
    return not value or SMALLEST <= abs(value) <= LARGEST


def impossible(row: Row, now: datetime) -> Said | None:
    """The sentence for the first value of a row that no measurement can have written. Such a value
    is out of range, or a future date. None if all are possible."""
    for name, value in vars(row).items():
        if value is None:
            continue
        problem = None
        if isinstance(value, str):
            problem = _impossible_text(type(row), name, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            problem = _impossible_number(name, value)
        if problem:
            return problem
    return _impossible_start(row.started_at, now)


def _impossible_number(name: str, value: float) -> Said | None:
    """Reason why a number cannot have been measured; None if it can, and for NaN."""
    is_error = name.endswith("_error")
    if value != value:
        return None
    # An integer may be too large for a float, and is compared with infinity as it is.
    if abs(value) == math.inf and (name in UNBOUNDED or is_error):
        return None
    is_tiny = abs(value) < 1 and (name == "loss" or is_error)
    if not (is_in_range(value) or is_tiny or name.startswith(OF_A_FORMAT)):
        return Said("cell_out_of_range", {"cell": name, "value": str(value)[:24]})
    if value < 0 and name not in SIGNED:
        return Said("cell_below_zero", {"cell": name, "value": value})
    if value == 0 and PEAK.fullmatch(name):
        return Said("cell_no_peak", {"cell": name})
    return None


def _impossible_start(started_at: str, now: datetime) -> Said | None:
    """Reason why a run cannot have started at that time; None if it can, and for an empty text."""
    try:
        ahead = _ahead(started_at, now)
    except ValueError:
        return Said("start_no_date", {"started_at": started_at[:40]})
    if ahead > MOST_AHEAD:
        return Said("start_to_come", {"started_at": started_at})
    if ahead < EPOCH - now:
        return Said("start_before_1970", {"started_at": started_at})
    return None


def is_json(field: FieldInfo) -> bool:
    """True for a column declared by `json_column`."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("json") is True


@cache  # asked for each cell of a table
def _json_columns(row: type[Row]) -> Set[str]:
    return {name for name, field in row.model_fields.items() if is_json(field)}


def _impossible_text(row: type[Row], name: str, value: str) -> Said | None:
    """Reason why a text cell cannot have been measured; None if it can."""
    if name in _json_columns(row):
        try:
            parse_json(value)
        except ValueError as error:
            begins = {"cell": name, "begins": value[:40]}
            return Said("cell_not_json", {**begins, "error": str(error)})
    elif len(value) > LONGEST_TEXT:
        return Said("cell_too_long", {"cell": name, "begins": value[:40], "most": LONGEST_TEXT})
    return None


def _ahead(started_at: str, now: datetime) -> timedelta:
    """Time from `now` until a date; negative for a past date, zero for an empty text."""
    if not started_at:
        return timedelta(0)
    at = datetime.fromisoformat(started_at)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)) - now


def clock_was_ahead(started_at: str, now: datetime) -> Said | None:
    """The sentence for a row that started more than a day in the future, as the clock was wrong
    then. None for any other row."""
    if _ahead(started_at, now) <= LEAST_AHEAD:
        return None
    return Said("clock_was_ahead", {"started_at": started_at})
