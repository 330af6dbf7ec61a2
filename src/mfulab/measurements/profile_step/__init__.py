"""Row of one profiled step of a model."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mfulab.core import groups, rows
from mfulab.core.configs import REPLICATE, ModelStepConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import (
    MACHINE_COST,
    MEDIAN_TIME,
    TIME_CI_LOW,
    Percent,
    TimedRow,
    column,
    counter_column,
    json_column,
)


class ProfileStepConfig(ModelStepConfig):
    """One step of a model: of training, inference or decoding."""

    axes: ClassVar[tuple[str, ...]] = (
        "model",
        "workload",
        "batch_size",
        "sequence_length",
        "precision",
        "execution",
    )
    timing: groups.TimingConfig = groups.TimingConfig()
    profile: groups.ProfileConfig = groups.ProfileConfig()
    replicate: int = REPLICATE

    def conflicts(self) -> Iterator[str]:
        """Yields a reason for each pair of values that cannot be combined."""
        workers = self.workload.loader_workers
        processes = f"parallel.processes={self.parallel.processes}"
        is_parallel = self.parallel.processes > 1
        if is_parallel and self.workload.mode != "training":
            yield f"{processes} with mode={self.workload.mode}: only training"
        if is_parallel and workers:
            yield f"{processes} with workload.loader_workers={workers}: ranks start no processes of their own"
        if self.execution.quantisation != "none" and self.workload.mode == "training":
            yield f"execution.quantisation={self.execution.quantisation} with mode=training: only inference"
        if self.model.pruning != "none" and self.workload.mode == "training":
            yield f"model.pruning={self.model.pruning} with mode=training: only inference"

    def missing(self) -> Iterator[str]:
        """Yields the reason if `workload.loader_file` does not exist or is smaller than one
        sample."""
        file = self.workload.loader_file
        if file is None:
            return
        if not Path(file).is_file():
            yield f"workload.loader_file={file}: no such file."
            return
        sample_bytes = self.model.sample_bytes(self.sequence_length)
        file_bytes = Path(file).stat().st_size
        if file_bytes < sample_bytes:
            yield f"workload.loader_file={file}: {file_bytes} bytes, and one sample takes {sample_bytes}."


class ProfileRow(TimedRow):
    """One profiled step of a model. The table joins its FLOP count and ceilings to it."""

    model: str = Field("", description="Name of the model.")
    workload: str = Field("", description="Name of the workload.")
    batch_size: int | None = column(
        "Samples a step; of each micro-batch with gradient accumulation."
    )
    sequence_length: int | None = column("Tokens a sample; empty for images.")
    precision: str = Field("", description="Name of the precision that was asked for.")
    execution: str = Field("", description="Name of the execution.")
    effective_precision: str | None = column("Number format that matmuls really used.")
    time_s: float | None = column(
        "Undisturbed step: a CPU's 10th percentile of fastest windows, else the median."
    )
    time_p5_s: float | None = column("5th percentile of the steps.")
    time_p95_s: float | None = counter_column("95th percentile of the steps.")
    median_time_s: float | None = MEDIAN_TIME
    machine_cost_percent: float | None = MACHINE_COST
    time_ci_low_s: float | None = TIME_CI_LOW
    time_ci_high_s: float | None = column("Upper end of the 95 % confidence interval of `time_s`.")
    within_spread_percent: float | None = counter_column(
        "Standard deviation of a process's windows' medians, relative."
    )
    windows: int | None = column("Number of measured windows.")
    steps: int | None = column("Number of measured steps over all windows.")
    window_s: float | None = counter_column("Total length of the measured windows.")
    warm_up_s: float | None = counter_column("Time of the warm-up.")
    steady: bool | None = column("True if warm-up ended because the step time was steady.")
    first_call_s: float | None = column("First step: lazy initialisation, autotuning, compilation.")
    forward_ms: float | None = column(
        "Model and loss of a training step, mean of marked steps apart."
    )
    backward_ms: float | None = column(
        "Backward pass of a training step, mean of marked steps apart."
    )
    optimiser_ms: float | None = column(
        "Update by the optimiser alone, mean of marked steps apart."
    )
    other_ms: float | None = column(
        "Rest of the step: fetching a batch, unscaling, clipping, schedule, zero_grad."
    )
    second_moment_zeros_percent: Percent | None = column(
        "Share of exact zeros in the optimiser's second moments, of Adam and AdamW, after the windows."
    )
    phases_percent: float | None = column(
        "Sum of the phases ÷ the mean of as many steps without marks between them."
    )
    devices: float | None = column(
        "Devices that the job occupies; on a CPU the job's threads ÷ the peak's."
    )
    sent_bytes: float | None = column(
        "Bytes that each of several processes sends in a step: by the loopback's counter, or of traced collectives."
    )
    predicted_sent_bytes: float | None = column(
        "Bytes a process sends in a step by the formulas of ring collectives."
    )
    exposed_communication_ms: float | None = column(
        "Communication not hidden, of the rank with most, traced pass."
    )
    transfer_percent: Percent | None = column(
        "Collectives if as short as the shortest rank's; rank that waits most."
    )
    waiting_percent: Percent | None = counter_column(
        "Time of collectives beyond the transfer: waiting; rank that waits most."
    )
    slowest_rank: int | None = column("Rank for which the others wait, as it waits least itself.")
    ranks: str | None = json_column(
        "for each rank a mapping of its step, communication and memory."
    )
    weight_bytes: float | None = column(
        "Stored weights that a pass of a quantised or packed model reads."
    )
    output_error: float | None = column(
        "Error from quantisation: ‖difference of logits‖ ÷ ‖logits before‖."
    )
    compile_s: float | None = column(
        "Time to trace, compile or capture a built model, beyond a steady step."
    )
    utilization_percent: Percent | None = column(
        "Utilization by the device's own measure of being busy."
    )
    utilization_source: str | None = counter_column("Counter that gave utilization_percent.")
    memory_bytes: int | None = column(
        "Peak memory of later steps: CUDA allocator, or RSS above the baseline on a CPU."
    )
    memory_source: str | None = counter_column("Counter that gave memory_bytes.")
    energy_j: float | None = column("Energy of a step, summed over all devices of a job.")
    power_w: float | None = column("Mean power over the windows, summed over all devices of a job.")
    clock_mhz: float | None = column("Mean SM clock over the windows; a CPU reports none.")
    loss: float | None = column("Loss after the last step; finite in a row that is ok.")
    relative_error: float | None = column(
        "‖y − r‖F / ‖r‖F of an inference's y, r in float64; where asked for."
    )
    losses: str | None = json_column("losses of the first training steps, where asked for.")
    exact_losses: str | None = json_column(
        "losses of the same steps by the model in float64, where asked for."
    )
    varied_calls: int | None = column("Number of calls with other batch sizes, where asked for.")
    varied_s: float | None = column("Time of all varied_calls, compilation included.")
    graphs: int | None = column("Graphs that torch.compile made in varied_calls.")
    recompilations: int | None = column("Calls that compiled, among varied_calls after the first.")
    graph_breaks: int | None = column("Places at which torch.compile went back to Python.")
    unread_parameters: int | None = counter_column(
        "Parameters of experts that no token of the last step chose; no training."
    )
    expert_imbalance: float | None = column(
        "Tokens of the busiest expert ÷ mean of all, mean over layers; last step."
    )
    kernel_busy_percent: Percent | None = column(
        "Union of kernel intervals, traced pass ÷ untraced time."
    )
    sm_active_percent: Percent | None = column("Mean share of SMs with a warp resident (GPM).")
    occupancy_percent: Percent | None = column("Mean share of warp slots in use (GPM).")
    tensor_active_percent: Percent | None = column("Cycles in which a tensor pipe worked (GPM).")
    dram_active_percent: Percent | None = column("Cycles in which DRAM moved data (GPM).")
    sources_answered: str | None = counter_column(
        "Sources of utilization that answered, strictest first."
    )
    restriction: str | None = counter_column(
        "Reason why some values cannot be had: `MIG instance` or `vGPU`."
    )
    graphics_active_percent: Percent | None = counter_column(
        "Time in which any context of the GPU had work (GPM)."
    )
    hmma_tensor_active_percent: Percent | None = counter_column(
        "Cycles of the tensor pipe on 16-bit and TF32 matmuls."
    )
    imma_tensor_active_percent: Percent | None = counter_column(
        "Cycles of the tensor pipe on integer matmuls."
    )
    dmma_tensor_active_percent: Percent | None = counter_column(
        "Cycles of the tensor pipe on FP64 matmuls."
    )
    dfma_tensor_active_percent: Percent | None = counter_column(
        "Cycles of the tensor pipe on FP64 multiply-adds."
    )
    fp64_active_percent: Percent | None = column("Cycles of the FP64 pipe, without tensor cores.")
    fp32_active_percent: Percent | None = column("Cycles of the FP32 pipe, without tensor cores.")
    fp16_active_percent: Percent | None = column("Cycles of the FP16 pipe, without tensor cores.")
    integer_active_percent: Percent | None = counter_column("Cycles of the integer pipe.")
    compute_busy_percent: Percent | None = counter_column(
        "Time with a compute kernel running, traced pass."
    )
    communication_percent: Percent | None = column(
        "Communication not overlapped by compute, traced pass."
    )
    copy_percent: Percent | None = counter_column(
        "Copies not overlapped by compute or communication, traced pass."
    )
    idle_percent: Percent | None = column("Time with nothing on the GPU, traced pass.")
    input_wait_percent: Percent | None = column(
        "Time in which the loop waited for its DataLoader's next batch."
    )
    launch_gaps_per_step: float | None = counter_column(
        "Gaps between kernels in a step, traced pass."
    )
    launch_gap_s: float | None = counter_column("Median gap in which the GPU had nothing to do.")
    top_kernels: str | None = json_column(
        "the five kernels with most time → share of device time, %."
    )
    matmul_percent: Percent | None = column(
        "Operators that multiply (kernels, on a CPU calls) ÷ wall time, traced."
    )
    other_operators_percent: Percent | None = counter_column(
        "Other operators (kernels, on a CPU calls) ÷ wall time, traced."
    )
    uncounted_operators: str | None = json_column(
        "operator with no formula → % of operators' own time, from 1 % on."
    )
    top_other_operators: str | None = json_column(
        "the five other operators with most time → share of wall time, %."
    )
    modules: str | None = json_column(
        "a traced step's modules by class: path, calls, ns, FLOPs, with all below it."
    )
    spent: str | None = json_column("kind of time → ns of all traced steps, each nanosecond once.")
    executed_ratio: float | None = rows.EXECUTED_RATIO
    issued_ratio: float | None = rows.ISSUED_RATIO
    misaligned: str | None = rows.MISALIGNED
    throttled_percent: Percent | None = counter_column(
        "Windows with a GPU's clock held back; CPU time held back by a quota."
    )
    power_capped_percent: Percent | None = column(
        "Windows in which the power limit held the GPU's clock back."
    )
    software_thermal_percent: Percent | None = counter_column(
        "Windows in which the driver held the GPU's clock back for heat."
    )
    hardware_thermal_percent: Percent | None = counter_column(
        "Windows in which the hardware held the clock back for heat."
    )
    power_brake_percent: Percent | None = counter_column(
        "Windows in which an external power brake held the GPU's clock back."
    )
    memory_clock_mhz: float | None = counter_column("Mean clock of DRAM.")
    temperature_c: float | None = column("Mean temperature of the GPU over the windows.")
    device_memory_bytes: float | None = column("Memory in use on the device, by all processes.")
    other_processes: int | None = column(
        "Other processes that used the GPU meanwhile; flags the row."
    )
    pcie_transmitted_gb_s: float | None = counter_column("Mean rate sent over PCIe.")
    pcie_received_gb_s: float | None = counter_column("Mean rate received over PCIe.")
    nvlink_transmitted_gb_s: float | None = counter_column("Mean rate sent over NVLink.")
    nvlink_received_gb_s: float | None = counter_column("Mean rate received over NVLink.")
    system_utilization_percent: Percent | None = column(
        "Load by all processes on the logical CPUs allowed here."
    )
    other_processes_percent: Percent | None = column(
        "CPU time of other processes on the logical CPUs allowed here."
    )
    cgroup_utilization_percent: Percent | None = counter_column(
        "CPU time of this process's cgroup ÷ (wall × cores filled)."
    )
    steal_percent: Percent | None = column("CPU time that the hypervisor gave to others.")
    voluntary_switches_per_s: float | None = counter_column(
        "Switches at which threads of this process gave up their CPU."
    )
    involuntary_switches_per_s: float | None = counter_column(
        "Switches at which threads of this process lost their CPU."
    )
    page_faults_per_s: float | None = column(
        "Page faults that need no disk: pages of memory just asked for."
    )
    page_fault_s: float | None = column(
        "Wall time of a page fault, all threads writing; empty under 1 % of the step."
    )
    default_state_page_faults: float | None = column(
        "Page faults a step in the allocator's default state."
    )
    default_state_time_s: float | None = column(
        "Step in the allocator's default state; empty if faults take < 1 %."
    )
    kept_memory_time_s: float | None = column(
        "Step while the allocator keeps freed memory; empty as page_fault_s is."
    )
    sources: str | None = json_column(
        "column → name of the source of its value, and over how many seconds; in no other language."
    )
    reasons: str | None = json_column("column → why it is empty.")


MEASUREMENT = Measurement(
    "profile",
    ProfileStepConfig,
    ProfileRow,
    "Profiling {wildcards.run}",
    "model mode batch_size precision execution hardware status time_s precision_percent mfu_percent utilization_percent"
    " hfu_percent samples_per_s tokens_per_s memory_bytes energy_j verdict",
    runtime_min=20,
    position=10,
)
