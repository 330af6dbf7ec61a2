"""Facts of one step, from a sweep's row, a user's loop or a trace: all that its account is computed
from. None is "not measured". Names contain their units, and are those of the tables' columns."""

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar, get_type_hints

from mfulab.core.json_text import parse_json

Known = float | None  # None is "not measured"
Row = Mapping[str, object]
Cell = float | str | None  # value in a row
Group = TypeVar("Group")


@dataclass(frozen=True)
class StepTime:
    """Time of the step, and how it was measured."""

    time_s: Known = None
    time_ci_low_s: Known = None
    time_ci_high_s: Known = None
    kept_memory_time_s: Known = None  # the same step with an allocator that keeps memory
    optimiser_ms: Known = None  # the optimiser's phase of a training step, in steps of their own
    steps: Known = None
    watched_steps: Known = None
    only_counted: Known = None  # number of steps, if every one ran under the counter
    measuring_percent: Known = None
    varied_calls: Known = None  # calls of a compiled model, each with one sample more
    varied_s: Known = None  # their time
    recompilations: Known = None  # those among them that compiled

    @property
    def update_percent(self) -> Known:
        """Share of the step that the optimiser's phase takes; None if it was not timed."""
        if self.optimiser_ms is None or not self.time_s:
            return None
        return self.optimiser_ms / self.time_s / 10


@dataclass(frozen=True)
class StepWork:
    """FLOPs and bytes of the step, for all its devices together."""

    flops: Known = None  # that the model needs
    executed_flops: Known = None  # that ran, recomputation included
    useful_ratio: Known = None  # share of `flops` that serves real tokens
    read_bytes: Known = None  # parameters and cache that inference must read
    bytes_moved: Known = None
    executed_ratio: Known = None  # operations that kernels execute ÷ FLOPs
    issued_ratio: Known = None  # the same at the rates of their instructions
    mostly_uncounted: bool = False  # True if matmuls of unknown FLOPs take too much time for an MFU
    of_model: bool = True  # True if the model was counted; False if `flops` are those in a trace


@dataclass(frozen=True)
class StepPeaks:
    """Limits of the step's devices: `peak` from a datasheet or a clock, `ceiling` as measured."""

    basis: str = ""  # what MFU divides by: `spec` or `measured`
    effective_precision: str = ""  # number format that the matmuls used
    peak_precision: str = ""  # format whose peak MFU divides by
    peak_tflop_s: Known = None
    max_clock_tflop_s: Known = None  # the peak at the highest clock
    ceiling_tflop_s: Known = None
    ceiling_ci_low_tflop_s: Known = None
    ceiling_ci_high_tflop_s: Known = None
    executed_tflop_s: Known = None  # what HFU divides by: executed FLOPs may mix formats otherwise
    peak_clock_mhz: Known = None
    peak_gb_s: Known = None
    ceiling_gb_s: Known = None
    ceiling_raised_percent: Known = None  # this run ÷ the ceiling measured before, if faster
    ceiling_slowdown: Known = None
    ceiling_other_processes_percent: Known = None
    slower_than_fp32: Known = None  # time ÷ time in fp32, for a format that the device emulates

    @property
    def tflop_s(self) -> Known:
        """TFLOP/s that MFU divides by; None if unknown."""
        return {"spec": self.peak_tflop_s, "measured": self.ceiling_tflop_s}.get(self.basis)

    @property
    def gb_s(self) -> Known:
        """GB/s that MBU divides by; None if unknown."""
        return {"spec": self.peak_gb_s, "measured": self.ceiling_gb_s}.get(self.basis)


@dataclass(frozen=True)
class Counters:
    """Readings of device, driver and operating system over the step, and of the optimiser's state
    after it."""

    utilization_percent: Known = None
    kernel_busy_percent: Known = None
    sm_active_percent: Known = None
    occupancy_percent: Known = None
    tensor_active_percent: Known = None
    fp32_active_percent: Known = None
    fp64_active_percent: Known = None
    fp16_active_percent: Known = None
    dram_active_percent: Known = None
    clock_mhz: Known = None
    throttled_percent: Known = None
    software_thermal_percent: Known = None
    hardware_thermal_percent: Known = None
    power_brake_percent: Known = None
    other_processes: Known = None
    other_processes_percent: Known = None
    steal_percent: Known = None
    page_faults_per_s: Known = None
    page_fault_s: Known = None
    replicates: Known = None
    disturbed_replicates: Known = None
    slowdown: Known = None
    second_moment_zeros_percent: Known = None  # exact zeros in the state of Adam or AdamW


@dataclass(frozen=True)
class TracedTime:
    """Times and shares of the step in a trace of it."""

    matmul_percent: Known = None
    other_operators_percent: Known = None
    uncounted_percent: Known = None
    input_wait_percent: Known = None
    copy_percent: Known = None
    communication_percent: Known = None
    launch_gaps_per_step: Known = None
    launch_gap_s: Known = None
    launch_bound_percent: Known = None
    spent_ns: Mapping[str, int] | None = None  # exclusive times of one or more steps, by kind
    best_matmul_ratio: Known = None  # matmuls' time at the best speed known ÷ their time
    top_other_operators: Mapping[str, float] = field(default_factory=dict)  # percent of the step
    misaligned: Mapping[str, float] = field(
        default_factory=dict
    )  # numbers of the matmul to pad first


@dataclass(frozen=True)
class StepFacts:
    """All that is known of one step."""

    time: StepTime = StepTime()
    work: StepWork = StepWork()
    peaks: StepPeaks = StepPeaks()
    counters: Counters = Counters()
    traced: TracedTime = TracedTime()

    @property
    def on_cpu(self) -> bool:
        """True if no counter of a GPU was read: operators run on the host."""
        counters = self.counters
        return counters.kernel_busy_percent is None and counters.sm_active_percent is None

    @property
    def page_faults_percent(self) -> Known:
        """Share of the step that page faults take; None if they were not timed. It is 0 if the step
        takes as long with memory kept."""
        counters = self.counters
        if counters.page_faults_per_s is None or counters.page_fault_s is None:
            return None
        time_s = self.time.time_s
        kept_s = self.time.kept_memory_time_s
        if time_s is not None and kept_s is not None and kept_s >= time_s:
            return 0.0
        return 100 * counters.page_faults_per_s * counters.page_fault_s


@dataclass(frozen=True)
class Shares:
    """Shares of a peak in percent, never clipped; names are those of the tables' columns."""

    tflop_s: Known = None  # FLOPs that the model needs ÷ time
    mfu_spec_percent: Known = None
    mfu_max_clock_percent: Known = None
    mfu_actual_clock_percent: Known = None
    mfu_measured_percent: Known = None
    mfu_percent: Known = None
    mfu_basis: str | None = None
    mfu_ci_low_percent: Known = None
    mfu_ci_high_percent: Known = None
    hfu_percent: Known = None
    mbu_percent: Known = None
    useful_mfu_percent: Known = None
    executed_percent: Known = None
    issued_percent: Known = None
    expected_mfu_percent: Known = None  # OFU, as the tensor pipe saw it
    ofu_percent: Known = None  # the same without padding and slow instructions

    @property
    def padding_ratio(self) -> Known:
        """Share of the model's FLOPs that serves padding instead of tokens; None if unknown."""
        if not self.mfu_percent or self.useful_mfu_percent is None:
            return None
        return 1 - self.useful_mfu_percent / self.mfu_percent


def number(value: object) -> Known:
    """Converts a cell to a float; None for an empty one, text, a flag, NaN and infinities."""
    if value is None or isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    if not math.isfinite(value):
        return None
    return float(value)


def text(value: object) -> str:
    """Returns a cell if it is text; empty for anything else."""
    if isinstance(value, str):
        return value
    return ""


def group(kind: type[Group], row: Row) -> Group:
    """Fills a group of facts from the columns of a row that have the names of its fields."""
    values = {}
    for name, read in _readers(kind).items():
        if name in row:
            values[name] = read(row[name])
    return kind(**values)


def facts_of(row: Row) -> StepFacts:
    """Facts in a row of the profile table, or of the table of traces."""
    return StepFacts(
        time=group(StepTime, row),
        work=group(StepWork, row),
        peaks=group(StepPeaks, {"basis": row.get("mfu_basis"), **row}),
        counters=group(Counters, row),
        traced=traced(row),
    )


def traced(row: Row) -> TracedTime:
    """Facts of a trace in the columns of a row. Raises ValueError if a cell is no JSON."""
    shares = vars(group(TracedTime, row))
    cells = {name: parse_json(text(row.get(name)) or "{}") for name in _CELLS}
    spent = parse_json(text(row.get("spent")) or "null")
    return TracedTime(**{**shares, **cells, "spent_ns": spent})


def without_hidden_matmuls(seen: TracedTime) -> TracedTime:
    """Drops the times if no matmul was seen in them: compiled code hides the step's matmuls."""
    spent_ns = seen.spent_ns or {}
    if spent_ns.get("products", 0) + spent_ns.get("uncounted", 0):
        return seen
    return replace(seen, spent_ns=None)


_CELLS = ("top_other_operators", "misaligned")
_READERS: dict[object, Callable[[object], object]] = {
    Known: number,
    str: text,
    str | None: lambda value: text(value) or None,
}


_READERS_OF: dict[type, Mapping[str, Callable[[object], object]]] = {}


def _readers(kind: type) -> Mapping[str, Callable[[object], object]]:
    """Functions that read the facts of a group, by name; without facts that no column holds."""
    if kind not in _READERS_OF:
        hints = get_type_hints(kind)
        names = [known.name for known in fields(kind) if hints[known.name] in _READERS]
        _READERS_OF[kind] = {name: _READERS[hints[name]] for name in names}
    return _READERS_OF[kind]
