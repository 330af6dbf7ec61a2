"""Row of a profiler trace."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import StepConfig
from mfulab.core.groups import MOST, Dimension, Peaks, TraceConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import (
    EXECUTED_RATIO,
    ISSUED_RATIO,
    MISALIGNED,
    Percent,
    Row,
    column,
    counter_column,
    json_column,
)


class ReadTraceConfig(StepConfig):
    """One trace that a profiler wrote, to be read."""

    axes: ClassVar[tuple[str, ...]] = ("trace", "trace_range")
    on_device: ClassVar[bool] = False
    trace: TraceConfig
    trace_range: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Number of the run of consecutive steps, if there are several; empty: the first.",
    )
    trace_steps: Dimension | None = column("Number of steps in a trace without ProfilerStep spans.")
    trace_peaks: Peaks = Field(
        {}, description="Dense peaks by format in TFLOP/s, of a device that is not known here."
    )


class TraceRow(Row):
    """One range of consecutive steps of one rank, read from a profiler's trace. FLOPs and `time_s`
    are per step."""

    trace: str = Field("", description="Name of the trace's file.")
    model: str = Field("", description="Name of the steps: the file's name, or `label`.")
    device: str | None = column("Name of the device in the trace; empty where the trace has none.")
    compute_capability: str | None = counter_column("Compute capability in the trace.")
    units: int | None = column("Number of SMs or compute units.")
    rank: int | None = column(
        "Rank in the job; the device's number where one trace holds several devices."
    )
    world_size: int | None = column("Ranks of the job in the trace.")
    mode: str | None = column(
        "Kind of step: prefill, decoding or mixed by an engine's marks, else training or inference."
    )
    precision: str | None = column("Number format of most FLOPs, as effective_precision.")
    device_index: int | None = counter_column("Number of the device, where a trace holds several.")
    first_step: int | None = column("Number that the profiler gave the first step read.")
    last_step: int | None = column("Number that the profiler gave the last step read.")
    steps: int | None = column("Number of steps in the window.")
    window_s: float | None = counter_column("Length of the window that was read.")
    window_source: str | None = json_column(
        "way in which the window was found, as keys and numbers."
    )
    time_s: float | None = column("Time of a step: window_s ÷ steps.")
    events: int | None = column("Number of events in the file.")
    flops: float | None = column("FLOPs of one step, from recorded shapes; attention counted full.")
    causal_flops: float | None = column("FLOPs of one step, causal attention counted by its half.")
    executed_flops: float | None = column(
        "FLOPs that ran in a step, recomputation of attention and checkpoints too."
    )
    bytes_moved: float | None = column(
        "Operands and results of counted matmuls, once each; empty if one is unknown."
    )
    flops_by_format: str | None = json_column("number format → FLOPs a step.")
    executed_by_format: str | None = json_column("number format → executed FLOPs a step.")
    executed_ratio: float | None = EXECUTED_RATIO
    issued_ratio: float | None = ISSUED_RATIO
    misaligned: str | None = MISALIGNED
    effective_precision: str | None = column("Number format of most FLOPs.")
    uncounted_percent: Percent | None = column(
        "Share of the matmuls' time whose FLOPs are unknown."
    )
    uncounted_operators: str | None = json_column(
        "operator or kernel → [% of the window, {reason: numbers}]."
    )
    products: str | None = json_column(
        "of each shape format, (batch, m, n, k), FLOPs, ns, ns at the fastest call."
    )
    operators: str | None = json_column(
        "of each operator and shapes ns, executed FLOPs, least bytes, or a reason."
    )
    modules: str | None = json_column(
        "of each module or marked range path, calls, ns in kernels and FLOPs."
    )
    timeline: str | None = json_column(
        "kind that took most of each 240th of the first step: [kind, how many]."
    )
    spent: str | None = json_column("kind of time → ns a window, each nanosecond once.")
    idle_causes: str | None = json_column(
        "reason why the device was idle → ns a window; together the idle part."
    )
    utilization_percent: Percent | None = column(
        "Time with a kernel running ÷ window: kernel-busy."
    )
    utilization_source: str | None = counter_column("Counter that gave utilization_percent.")
    kernel_busy_percent: Percent | None = column("Union of kernel intervals ÷ window.")
    compute_busy_percent: Percent | None = counter_column("Union of compute kernels ÷ window.")
    communication_percent: Percent | None = column(
        "Communication not overlapped by compute ÷ window."
    )
    communication_total_percent: Percent | None = counter_column(
        "All communication ÷ window, overlapped or not."
    )
    copy_percent: Percent | None = counter_column("Copies not overlapped by kernels ÷ window.")
    idle_percent: Percent | None = column("Time with nothing on the device ÷ window.")
    matmul_percent: Percent | None = column("Matmuls, convolutions and attention ÷ window.")
    other_operators_percent: Percent | None = counter_column(
        "Compute of all other operators ÷ window."
    )
    launch_gaps_per_step: float | None = counter_column("Gaps between kernels in a step.")
    launch_gap_s: float | None = counter_column("Median gap in which the device had nothing to do.")
    launch_bound_percent: Percent | None = counter_column(
        "Idle time in gaps under 1 ms, ended by a kernel launched then."
    )
    top_kernels: str | None = json_column("five longest kernels → % of device time.")
    top_other_operators: str | None = json_column("five longest other operators → % of the window.")
    job: str | None = column("Name of the job that the file belongs to: folder and world size.")
    collectives: str | None = json_column(
        "collective → ns of each kernel in order, to match with other ranks."
    )
    collective_sizes: str | None = json_column(
        "kind, bytes and processes of collectives, and ns of their kernels."
    )
    given_peaks: str | None = json_column("number format → TFLOP/s, stated by the user.")
    flops_source: str | None = column(
        "Source of the FLOPs: recorded shapes, or the counter where a model was given."
    )
    source: str | None = column("Origin of a shipped row's trace: repository, commit, licence.")
    reasons: str | None = json_column("column → reason why it is empty, a text or {key: numbers}.")
    notes: str | None = json_column("other facts about the row, as keys and numbers.")


MEASUREMENT = Measurement(
    "traces",
    ReadTraceConfig,
    TraceRow,
    "Reading {wildcards.run}",
    "model device rank effective_precision status steps time_s mfu_percent kernel_busy_percent matmul_percent"
    " communication_percent idle_percent hfu_percent job_mfu_percent verdict",
    priority=10,
    position=50,
)
