"""Rows of runs: closed and typed, every column with its unit and meaning.

A row is what a step measured; None stands for "not measured" and becomes an empty cell.
"""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Percent = Annotated[float, Field(ge=0)]
TIME_CI_LOW = Field(None, description="95 % confidence interval of `time_s`, from the spread between processes.")
Status = Literal["ok", "out_of_memory", "unsupported", "incorrect", "failed", "not_measured"]
NOT_MEASURED: Status = "not_measured"  # for the budget, which the message names


# Columns that may be below zero; those that may be infinite, where a format overflows, and are then shown empty.
SIGNED = {"deviation_percent", "difference_points", "loss", "temperature_c"}
UNBOUNDED = {"loss", "max_absolute_error", "printed", "flops", "deviation_percent"}
SMALLEST, LARGEST = 1e-30, 1e30  # of any quantity but zero; what lies beyond is a broken file
OF_A_FORMAT = ("largest", "last", "smallest")  # how columns begin that hold a format's own limits
LONGEST_MESSAGE = 2000  # characters; a log has the rest


class Row(BaseModel):
    """Columns with which every row begins. Units stand in the names; an empty cell was not measured."""

    model_config = ConfigDict(extra="forbid")

    hardware: str = Field("", description="Slug of the device; empty if none is needed.")
    run: str = ""
    status: Status = "ok"
    message: str = Field("", description="Why the status is not ok, or which values are empty for what reason.")
    commit: str = Field("", description="Git commit of the measuring code, with `-dirty` where the tree was changed.")
    started_at: str = Field("", description="ISO 8601, UTC.")
    process_s: float | None = Field(None, description="Wall time of the run's process, imports included.")
    measured_s: float | None = Field(None, description="Of that, time inside warm-up and measured windows.")


class EnvironmentRow(Row):
    """One row a machine. Lists and mappings are JSON text."""

    device: str | None = Field(None, description="cpu or cuda.")
    device_name: str | None = None
    python: str | None = None
    packages: str | None = Field(None, description="JSON: name → version of the packages that matter to a measurement.")
    operating_system: str | None = None
    cpu_name: str | None = None
    cpu_physical_cores: int | None = Field(None, description="Physical cores that this process may use.")
    cpu_logical_cores: int | None = Field(None, description="Logical cores that this process may use.")
    cpu_machine_cores: int | None = Field(None, description="Logical cores of the machine.")
    cpu_limit: float | None = Field(None, description="CPUs granted by the cgroup quota.")
    cpu_mhz: float | None = None
    cpu_vector_flags: str | None = Field(None, description="Space-separated vector extensions.")
    memory_total_bytes: int | None = None
    memory_limit_bytes: int | None = Field(None, description="Granted by the cgroup.")
    virtual_machine: bool | None = None
    blas_threads: str | None = Field(None, description="JSON: library → threads of every BLAS or OpenMP pool.")
    gpus: str | None = Field(
        None, description="JSON list: name, uuid, compute capability, SMs, clocks, memory, power limit of each GPU."
    )
    driver: str | None = None
    cuda: str | None = Field(None, description="CUDA version that torch was built for.")
    cpu_governor: str | None = Field(None, description="Frequency governor; a virtual machine reports none.")
    cpu_turbo: bool | None = Field(None, description="True if the clock may rise above its nominal rate.")
    huge_pages: str | None = Field(None, description="Transparent huge pages: always, madvise or never.")
    thread_settings: str | None = Field(
        None,
        description="JSON: variables of the environment that place threads or let them spin, as the runs see them.",
    )
    probe_product_s: float | None = Field(None, description="The probe's matmul at its best, on a CPU.")
    probe_copy_s: float | None = Field(None, description="The probe's copy at its best, on a CPU.")


class TimedRow(Row):
    """A row of what is timed by several processes, apart in time, which the tables make one."""

    replicates: int | None = Field(None, description="Processes whose measurements count.")
    left_out_replicates: int | None = Field(
        None, description="Processes left out: they met a slow state of the machine, and two or more did not."
    )
    between_spread_percent: float | None = Field(
        None, description="Standard deviation of the processes' medians, relative."
    )
    process_times_s: str | None = Field(None, description="JSON: the median of each process, in their order.")
    precision_percent: float | None = Field(
        None, description="Half the 95 % confidence interval, relative: the precision that was reached."
    )
    disturbed_replicates: int | None = Field(
        None, description="Processes that count although they met a slow state of the machine; they widen the interval."
    )
    slowdown: float | None = Field(
        None, description="The machine's probe around what counts ÷ its best on this machine; of the slowest process."
    )
    disturbed_windows: int | None = Field(
        None, description="Windows, or rounds of a matmul, that count although the machine was disturbed."
    )
    repeated_windows: int | None = Field(None, description="Those measured again because the machine was disturbed.")
    probe_s: float | None = Field(None, description="Time spent on probing the machine's state.")
    probes: str | None = Field(
        None, description="JSON: the machine's states: when (Unix time), seconds of the probe's matmul and copy."
    )


class CeilingRow(TimedRow):
    """Ceiling of the device, in one precision or in bytes; of several processes the best on a CPU, else the median."""

    ceiling: str = Field("", description="The name of a precision, or `memory`.")
    measured_tflop_s: float | None = Field(None, description="Best large matmul found on this device.")
    measured_ci_low_tflop_s: float | None = Field(
        None, description="95 % confidence interval of it, from the spread between processes."
    )
    measured_ci_high_tflop_s: float | None = None
    measured_with: str | None = Field(
        None,
        description="torch (_nt, _tn: an operand transposed), cast, convolution, attention, on a CPU also numpy and "
        "onednn; in the tables also a faster kernel or model.",
    )
    measured_shape: str | None = Field(None, description="The shape that gave it, MxNxK; none of a model.")
    emulated: bool | None = Field(
        None, description="The device has no units of this format: it has no ceiling of its own, fp32's stands for it."
    )
    swept_tflop_s: float | None = Field(
        None, description="What `ceilings` measured, in the tables where a run of the sweep was faster."
    )
    raised_by: str | None = Field(None, description="That run, which is the ceiling then.")
    computed_tflop_s: float | None = Field(None, description="Dense peak from device properties.")
    computed_clock_mhz: float | None = Field(None, description="The clock in that peak; it scales with it.")
    computed_formula: str | None = Field(None, description="The factors of that peak.")
    computed_source: str | None = Field(None, description="Where each factor comes from.")
    datasheet_tflop_s: float | None = None
    max_clock_tflop_s: float | None = Field(None, description="The same at the highest clock that the device allows.")
    measured_gb_s: float | None = Field(None, description="Triad a[i] = b[i] + s·c[i], three streams counted.")
    measured_ci_low_gb_s: float | None = None
    measured_ci_high_gb_s: float | None = None
    computed_gb_s: float | None = Field(None, description="Memory clock × bus width × 2, if the device reports them.")
    clock_mhz: float | None = Field(None, description="Mean SM clock while measuring.")
    threads: int | None = Field(None, description="CPU threads used.")


class FlopsRow(Row):
    """Per step of `batch_size` samples. 1 multiply-add = 2 FLOPs; matmul, convolution and attention count."""

    model: str = ""
    batch_size: int | None = None
    sequence_length: int | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    looked_up_parameters: int | None = Field(
        None, description="Of embedding tables that nothing multiplies by: a pass reads rows of them, not all."
    )
    counted_on: Literal["meta", "fake", "cpu"] | None = Field(
        None, description="The meta device; fake tensors or real ones on the CPU where the model needs them."
    )
    forward_flops: int | None = Field(None, description="Attention counted full.")
    backward_flops: int | None = Field(None, description="Without recomputation.")
    forward_macs: int | None = Field(None, description="forward_flops / 2.")
    attention_flops: int | None = Field(None, description="The part of forward_flops that grows with pairs of tokens.")
    forward_causal_flops: int | None = Field(None, description="Causal attention counted by its half.")
    backward_causal_flops: int | None = None
    executed_backward_flops: int | None = Field(
        None, description="As the kernels do it, flash attention's recomputation included."
    )
    useful_percent: Percent | None = Field(
        None, description="Of forward and backward FLOPs, those for real tokens; empty if the model's calls show none."
    )
    recomputed_flops: int | None = Field(None, description="Executed in addition with activation checkpointing.")
    optimizer_flops: int | None = Field(None, description="Of Adam; of others: mfulab.flops.optimizers.")
    other_flops: int | None = Field(None, description="Norms, activations, softmax, loss, forward.")
    other_backward_flops: int | None = None
    uncounted_operators: str | None = Field(None, description="JSON: operator without a formula → calls.")
    forward_bytes: int | None = Field(
        None, description="Read and written by the counted operators, 4 bytes an element."
    )
    backward_bytes: int | None = None
    other_bytes: int | None = Field(None, description="The same of all other operators, forward.")
    other_backward_bytes: int | None = None
    activation_bytes: int | None = Field(
        None, description="Floats saved for the backward pass, 4 bytes an element; fused attention saves no scores."
    )
    activation_fixed_bytes: int | None = Field(
        None, description="Integers and masks saved for it, the same in every precision."
    )
    cpu_lstm_bytes: int | None = Field(
        None, description="Beyond activation_bytes: what oneDNN's LSTMs save on a CPU in fp32, or in bf16 where it can."
    )
    cpu_lstm_fixed_bytes: int | None = Field(None, description="The same, of what stays fp32 in every precision.")
    checkpointed_activation_bytes: int | None = Field(
        None, description="Floats saved with activation checkpointing, 4 bytes an element."
    )
    logits_bytes: int | None = Field(None, description="A language model's output, 4 bytes an element.")
    key_value_cache_bytes: int | None = Field(
        None, description="Keys and values of all layers and tokens, 4 bytes an element; causal transformers only."
    )
    step_peak_bytes: int | None = Field(
        None, description="Floats alive at once beside the weights, 4 bytes each: activations, gradients, in passing."
    )
    step_peak_fixed_bytes: int | None = Field(None, description="Integers and masks alive at the same time.")
    checkpointed_peak_bytes: int | None = Field(None, description="step_peak_bytes with activation checkpointing.")
    plans: str | None = Field(
        None, description="JSON: of a transformer, each way to train it on several devices, by formulas, or why none."
    )
    inference_flops: int | None = Field(None, description="Forward in evaluation mode.")
    inference_causal_flops: int | None = Field(None, description="The same, causal attention counted by its half.")
    inference_other_flops: int | None = None
    inference_bytes: int | None = Field(None, description="Read and written by its counted operators, 4 bytes each.")
    least_bytes: int | None = Field(
        None, description="Of inference: input, parameters and output, each moved once, as if all were one operator."
    )
    inference_peak_bytes: int | None = Field(None, description="Floats alive at once beside the weights, 4 bytes each.")
    inference_peak_fixed_bytes: int | None = None
    prefill_flops: int | None = Field(
        None, description="Of a whole prompt, with the logits of its last token alone; causal transformers only."
    )
    prefill_causal_flops: int | None = None
    prefill_bytes: int | None = None
    decoding_flops: int | None = Field(
        None, description="Of the last token of each sequence, those before it in a cache; causal transformers only."
    )
    decoding_bytes: int | None = Field(None, description="Read and written by its counted operators, 4 bytes each.")
    intensities: str | None = Field(
        None,
        description="JSON: pass → [executed FLOPs, bytes of 4 an element] of its operators, those of alike intensity"
        " summed; all that multiply nothing are one, of 0 FLOPs.",
    )


class CounterRow(Row):
    """Another tool's count of one forward pass, beside our own."""

    model: str = ""
    batch_size: int | None = None
    sequence_length: int | None = None
    counter: str = ""
    version: str | None = Field(None, description="Of the tool.")
    printed: float | None = Field(None, description="The tool's own number.")
    printed_unit: str | None = Field(None, description="FLOP, MAC, `MAC a sample`, or `MAC, called FLOP`.")
    flops: float | None = Field(None, description="The same in FLOPs of two a multiply-add.")
    reference_flops: int | None = Field(None, description="Our count, forward in evaluation mode.")
    deviation_percent: float | None = Field(None, description="Of flops from reference_flops.")
    explanation: str | None = Field(None, description="Kinds of layers whose absence explains the number.")
    uncounted_operators: str | None = Field(None, description="JSON: what the tool says it passed over → calls.")


class MatmulRow(TimedRow):
    """One measured matmul."""

    kernel: str = ""
    family: str = Field("", description="CPU, Numba CUDA, CUDA C, Triton, tile language or library.")
    after: str = Field("", description="Rung below on the ladder of its family; empty: the lowest.")
    adds: str = Field("", description="What this rung does that the one below does not.")
    size: str = ""
    precision: str = ""
    batch: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    effective_precision: str | None = Field(None, description="The format whose rounding the error shows.")
    time_s: float | None = Field(None, description="Median of `hot_time_s`: launches back to back.")
    time_ci_low_s: float | None = TIME_CI_LOW
    time_ci_high_s: float | None = None
    hot_time_s: float | None = None
    hot_iqr_s: float | None = None
    cold_time_s: float | None = Field(None, description="Caches flushed before each launch.")
    cold_iqr_s: float | None = None
    first_call_s: float | None = Field(None, description="JIT compilation included.")
    first_calls: int | None = Field(None, description="Calls in first_calls_mean_s.")
    first_calls_mean_s: float | None = Field(
        None, description="Mean of that many calls, the first among them: what a script without warm-up prints."
    )
    allocation_s: float | None = Field(None, description="A, B and C; on a CPU their pages are touched.")
    host_to_device_s: float | None = Field(None, description="A and B from pageable memory.")
    device_to_host_s: float | None = None
    host_to_device_pinned_s: float | None = None
    device_to_host_pinned_s: float | None = None
    end_to_end_s: float | None = Field(None, description="NumPy arrays in, NumPy array out.")
    reference_time_s: float | None = Field(None, description="cuBLAS (CPU: torch) interleaved in the same run.")
    reference_name: str | None = None
    reference_cold_time_s: float | None = None
    flops: int | None = Field(None, description="2·batch·m·n·k.")
    bytes_moved: int | None = Field(None, description="A and B read once, C written once.")
    relative_error: float | None = Field(None, description="‖C−R‖F / ‖R‖F against float64 of the quantised inputs.")
    max_absolute_error: float | None = None
    tolerance: float | None = Field(None, description="relative_error above it makes the row `incorrect`.")
    repetitions: int | None = Field(None, description="Hot repetitions; each is a group of back-to-back calls.")
    unheld_repetitions: int | None = Field(
        None, description="Of these, on a GPU: launches may have waited for the host, as a call that synchronises does."
    )
    block: str | None = None
    grid: str | None = None
    registers: int | None = Field(None, description="Per thread, from the compiler.")
    shared_memory_bytes: int | None = None
    spill_bytes: int | None = None
    occupancy_percent: Percent | None = Field(None, description="Theoretical, from registers and shared memory.")
    clock_mhz: float | None = None
    threads: int | None = None
    other_processes_percent: Percent | None = Field(
        None, description="On a CPU, while timing: what other processes took of the logical CPUs that this one may use."
    )


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


PeakVerdict = Literal[
    "agreed", "sparse for dense", "another format", "halved", "another device", "guessed", "different", "missing"
]


class PeaksAuditRow(Row):
    """Another library's peak for one device in one format, beside ours."""

    library: str = ""
    version: str | None = None
    device: str | None = Field(None, description="The datasheet's name.")
    asked: str | None = Field(None, description="The name that a driver reports, by which it was asked.")
    precision: str | None = Field(None, description="A format, or `memory`; empty if it knows no format of a device.")
    theirs: float | None = Field(None, description="Dense TFLOP/s as it uses them; memory: 10⁹ byte/s.")
    ours: float | None = Field(None, description="The same by the datasheet.")
    ratio: float | None = Field(None, description="Theirs ÷ ours.")
    verdict: PeakVerdict | None = None
    explanation: str | None = Field(None, description="Whose number it is, where it is not this device's.")


class PublishedRow(Row):
    """A public run with the FLOPs that its model needs, as counted here; MFU is derived, never the publisher's."""

    published: str = Field("", description="The collection: a file in results/reference/published/.")
    submitter: str | None = None
    system: str | None = Field(None, description="What ran, in the publisher's words.")
    framework: str | None = None
    model: str = ""
    parameters: int | None = None
    sequence_length: int | None = None
    accelerator: str | None = Field(None, description="The datasheet's name of the device.")
    architecture: str | None = Field(
        None, description="Compute capability, gfx name or family, as the datasheet has it."
    )
    accelerators: int | None = None
    precision: str | None = Field(None, description="As published; empty if it is not said.")
    batch_size: int | None = Field(None, description="Samples a step, of all devices together.")
    samples_per_s: float | None = Field(None, description="Of all devices together.")
    tokens_per_s_per_device: float | None = None
    flops_per_sample: float | None = Field(None, description="Forward and backward, attention full.")
    tflop_s_per_device: float | None = Field(None, description="FLOPs that the model needs; else as published.")
    mfu_bf16_percent: Percent | None = Field(None, description="Of the dense 16-bit peak.")
    mfu_fp8_percent: Percent | None = None
    mfu_fp4_percent: Percent | None = None
    mfu_percent: Percent | None = Field(None, description="Of the dense peak of the published precision, else 16 bits.")
    mfu_format: str | None = Field(None, description="Whose peak stands under mfu_percent.")
    slowest_format: str | None = Field(None, description="The slowest format whose peak the speed does not exceed.")
    printed_mfu_percent: Percent | None = Field(None, description="What the publisher prints.")
    convention: str | None = Field(None, description="The convention that the publisher names.")
    convention_mfu_percent: Percent | None = Field(None, description="MFU by that convention.")
    difference_points: float | None = Field(None, description="Printed MFU − MFU by that convention.")
    explanation: str | None = Field(None, description="Points that its choices add to our MFU.")
    source: str | None = None
