"""Row of a profiler trace."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import StepConfig
from mfulab.core.groups import MOST, Dimension, Peaks, TraceConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row


class ReadTraceConfig(StepConfig):
    """One trace that torch.profiler wrote somewhere, read."""

    axes: ClassVar[tuple[str, ...]] = ("trace", "trace_range")
    on_device: ClassVar[bool] = False
    trace: TraceConfig
    trace_range: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Number of the run of consecutive steps, if a trace holds several; empty: the first.",
    )
    trace_steps: Dimension | None = Field(None, description="Steps in a trace without ProfilerStep spans.")
    trace_peaks: Peaks = Field({}, description="Dense peaks by format in TFLOP/s, of a device that is not known here.")


class TraceRow(Row):
    """One profiled range of steps of one rank, read from a trace that torch.profiler wrote; FLOPs and times a step."""

    trace: str = Field("", description="The file's name.")
    model: str = Field("", description="What the steps are called: the file's name, or `label`.")
    device: str | None = Field(None, description="As the trace names it; empty where it does not.")
    compute_capability: str | None = Field(None, description="CUDA compute capability of the device.")
    units: int | None = Field(None, description="SMs or compute units.")
    rank: int | None = Field(None, description="Of a job; of several devices in one trace, the device's number.")
    world_size: int | None = Field(None, description="Processes of the job.")
    mode: str | None = Field(None, description="training where a backward pass was recorded, else inference.")
    precision: str | None = Field(None, description="The same as effective_precision.")
    device_index: int | None = Field(None, description="The device's number, where a trace holds several.")
    first_step: int | None = Field(None, description="The profiler's number of the first step read.")
    last_step: int | None = Field(None, description="Last step of the window.")
    steps: int | None = Field(None, description="Steps in the window.")
    window_s: float | None = Field(None, description="Wall time of the steps that were read.")
    window_source: str | None = Field(None, description="JSON: how the window was found, as keys and numbers.")
    time_s: float | None = Field(None, description="window_s ÷ steps.")
    events: int | None = Field(None, description="Events in the file.")
    flops: float | None = Field(None, description="Of one step, from recorded shapes; attention counted full.")
    causal_flops: float | None = Field(None, description="Causal attention counted by its half.")
    executed_flops: float | None = Field(
        None, description="With recomputation, of checkpoints and of flash attention's backward."
    )
    bytes_moved: float | None = Field(
        None, description="Operands and results of the counted matmuls, once each; empty where one is unknown."
    )
    recorded_flops: float | None = Field(None, description="What the profiler itself counted, as a cross-check.")
    flops_by_format: str | None = Field(None, description="JSON: format → FLOPs a step.")
    executed_by_format: str | None = Field(None, description="The same, executed.")
    padding_by_format: str | None = Field(None, description="JSON: format → FLOPs a step that whole tiles add.")
    effective_precision: str | None = Field(None, description="The format of most FLOPs.")
    uncounted_percent: Percent | None = Field(
        None, description="Of the time of all matmuls, that of those whose FLOPs are unknown."
    )
    uncounted_operators: str | None = Field(
        None, description="JSON: operator or kernel → [% of the window, {reason: numbers}]."
    )
    products: str | None = Field(
        None,
        description="JSON: of each shape its format, (batch, m, n, k), FLOPs, ns of a window, ns at its fastest call.",
    )
    spent: str | None = Field(None, description="JSON: kind of time → ns a window, exclusive.")
    utilization_percent: Percent | None = Field(None, description="Time with a kernel running: kernel-busy.")
    utilization_source: str | None = Field(None, description="What reported `utilization_percent`.")
    kernel_busy_percent: Percent | None = Field(None, description="Union of kernel intervals ÷ window.")
    compute_busy_percent: Percent | None = Field(None, description="Union of compute kernels ÷ wall time.")
    communication_percent: Percent | None = Field(None, description="Communication not overlapped by compute.")
    communication_total_percent: Percent | None = Field(None, description="All communication.")
    copy_percent: Percent | None = Field(None, description="Copies not overlapped by kernels.")
    idle_percent: Percent | None = Field(None, description="Nothing on the device.")
    idle_input_percent: Percent | None = Field(None, description="Of that, while the host waited for its DataLoader.")
    graph_percent: Percent | None = Field(None, description="Compute launched by a graph, of no operator.")
    matmul_percent: Percent | None = Field(None, description="Matmuls, convolutions, attention.")
    other_operators_percent: Percent | None = Field(None, description="Compute of all other operators.")
    launch_gaps_per_step: float | None = Field(
        None, description="Gaps between kernels in which the GPU had nothing to do, a step."
    )
    launch_gap_s: float | None = Field(None, description="Median gap in which the device had nothing to do.")
    launch_bound_percent: Percent | None = Field(
        None, description="Idle in gaps under 1 ms that ended with a kernel not yet launched when they began."
    )
    launch_latency_s: float | None = Field(None, description="Median time from launch call to kernel.")
    queue_depth: float | None = Field(None, description="Mean number of launched activities that wait to run.")
    stream_overlap_percent: Percent | None = Field(None, description="Two or more activities at once.")
    estimated_occupancy_percent: Percent | None = Field(
        None, description="Launch arithmetic weighted by kernel time; never measured."
    )
    top_kernels: str | None = Field(None, description="JSON: five longest kernels → % of device time.")
    top_other_operators: str | None = Field(None, description="JSON: five longest other operators → % of the window.")
    job: str | None = Field(None, description="Names the files of one job: their folder and world size.")
    collectives: str | None = Field(
        None, description="JSON: collective → ns of each of its kernels in order, to be joined with other ranks."
    )
    given_peaks: str | None = Field(None, description="JSON: format → TFLOP/s, stated by the user.")
    flops_source: str | None = Field(None, description="Recorded shapes, or the counter where a model was given.")
    source: str | None = Field(None, description="Where a shipped row's trace came from: repository, commit, licence.")
    reasons: str | None = Field(None, description="JSON: column → why it is empty, a text or {key: numbers}.")
    notes: str | None = Field(None, description="JSON: what else to know of the row, as keys and numbers.")


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
