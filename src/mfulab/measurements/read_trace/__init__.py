"""Row of a profiler trace."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import StepConfig
from mfulab.core.groups import MOST, Dimension, Peaks, TraceConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import EXECUTED_RATIO, ISSUED_RATIO, MISALIGNED, Percent, Row, column


class ReadTraceConfig(StepConfig):
    """One trace that a profiler wrote somewhere, read."""

    axes: ClassVar[tuple[str, ...]] = ("trace", "trace_range")
    on_device: ClassVar[bool] = False
    trace: TraceConfig
    trace_range: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Number of the run of consecutive steps, if a trace holds several; empty: the first.",
    )
    trace_steps: Dimension | None = column("Steps in a trace without ProfilerStep spans.")
    trace_peaks: Peaks = Field({}, description="Dense peaks by format in TFLOP/s, of a device that is not known here.")


class TraceRow(Row):
    """One profiled range of steps of one rank, read from a profiler's trace; FLOPs and times a step."""

    trace: str = Field("", description="The file's name.")
    model: str = Field("", description="What the steps are called: the file's name, or `label`.")
    device: str | None = column("As the trace names it; empty where it does not.")
    compute_capability: str | None = column("As the trace says.")
    units: int | None = column("SMs or compute units.")
    rank: int | None = column("Of a job; of several devices in one trace, the device's number.")
    world_size: int | None = column("Ranks of the job, as the trace says.")
    mode: str | None = column("training where a backward pass was recorded, else inference.")
    precision: str | None = column("The same as effective_precision.")
    device_index: int | None = column("The device's number, where a trace holds several.")
    first_step: int | None = column("The profiler's number of the first step read.")
    last_step: int | None = column("Number of the last step that was read.")
    steps: int | None = column("Steps in the window.")
    window_s: float | None = column("Length of what was read.")
    window_source: str | None = column("JSON: how the window was found, as keys and numbers.")
    time_s: float | None = column("window_s ÷ steps.")
    events: int | None = column("Events in the file.")
    flops: float | None = column("Of one step, from recorded shapes; attention counted full.")
    causal_flops: float | None = column("Causal attention counted by its half.")
    executed_flops: float | None = column("With recomputation, of checkpoints and of flash attention's backward.")
    bytes_moved: float | None = column("Operands and results of counted matmuls, once each; empty if one is unknown.")
    flops_by_format: str | None = column("JSON: format → FLOPs a step.")
    executed_by_format: str | None = column("The same, executed.")
    executed_ratio: float | None = EXECUTED_RATIO
    issued_ratio: float | None = ISSUED_RATIO
    misaligned: str | None = MISALIGNED
    effective_precision: str | None = column("The format of most FLOPs.")
    uncounted_percent: Percent | None = column("Of the time of all matmuls, that of those whose FLOPs are unknown.")
    uncounted_operators: str | None = column("JSON: operator or kernel → [% of the window, {reason: numbers}].")
    products: str | None = column("JSON: of each shape its format, (batch, m, n, k), FLOPs, ns, ns of its fastest.")
    operators: str | None = column("JSON: of each operator and shapes its ns, executed FLOPs, least bytes, or why not.")
    modules: str | None = column("JSON: of each module or marked range its path, calls, ns in kernels and FLOPs.")
    timeline: str | None = column("JSON: what took most of each 240th of the first step: [kind, how many].")
    spent: str | None = column("JSON: kind of time → ns a window, exclusive.")
    idle_causes: str | None = column("JSON: why the device was idle → ns a window; together the idle part.")
    utilization_percent: Percent | None = column("Time with a kernel running: kernel-busy.")
    utilization_source: str | None = column("The counter that gave it.")
    kernel_busy_percent: Percent | None = column("Union of kernel intervals ÷ window.")
    compute_busy_percent: Percent | None = column("Union of compute kernels ÷ wall time.")
    communication_percent: Percent | None = column("Communication not overlapped by compute.")
    communication_total_percent: Percent | None = column("All communication.")
    copy_percent: Percent | None = column("Copies not overlapped by kernels.")
    idle_percent: Percent | None = column("Nothing on the device.")
    idle_input_percent: Percent | None = column("Of that, while the host waited for its DataLoader.")
    graph_percent: Percent | None = column("Compute launched by a graph, of no operator.")
    matmul_percent: Percent | None = column("Matmuls, convolutions, attention.")
    other_operators_percent: Percent | None = column("Compute of all other operators.")
    launch_gaps_per_step: float | None = column("Gaps between kernels in a step.")
    launch_gap_s: float | None = column("Median gap in which the device had nothing to do.")
    launch_bound_percent: Percent | None = column("Idle in gaps under 1 ms, ended by a kernel launched in them.")
    launch_latency_s: float | None = column("Median time from launch call to kernel.")
    queue_depth: float | None = column("Mean number of launched activities that wait to run.")
    top_kernels: str | None = column("JSON: five longest kernels → % of device time.")
    top_other_operators: str | None = column("JSON: five longest other operators → % of the window.")
    job: str | None = column("Names the files of one job: their folder and world size.")
    collectives: str | None = column("JSON: collective → ns of each of its kernels in order, as other ranks have them.")
    collective_sizes: str | None = column("JSON: kind, bytes and processes of collectives, and ns of their kernels.")
    given_peaks: str | None = column("JSON: format → TFLOP/s, stated by the user.")
    flops_source: str | None = column("Recorded shapes, or the counter where a model was given.")
    source: str | None = column("Where a shipped row's trace came from: repository, commit, licence.")
    reasons: str | None = column("JSON: column → why it is empty, a text or {key: numbers}.")
    notes: str | None = column("JSON: what else to know of the row, as keys and numbers.")


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
