"""Row of one profiled step of a model."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mfulab.core import groups
from mfulab.core.configs import REPLICATE, SEED
from mfulab.core.measurement import Measurement
from mfulab.core.rows import (
    EXECUTED_RATIO,
    ISSUED_RATIO,
    MACHINE_COST,
    MEDIAN_TIME,
    MISALIGNED,
    TIME_CI_LOW,
    Percent,
    TimedRow,
    column,
)
from mfulab.measurements.count_flops import CountFlopsConfig


class ProfileStepConfig(CountFlopsConfig):
    """One step of a model: of training, inference or decoding."""

    on_device: ClassVar[bool] = True
    axes: ClassVar[tuple[str, ...]] = ("model", "workload", "batch_size", "sequence_length", "precision", "execution")
    workload: groups.WorkloadConfig
    precision: groups.PrecisionConfig
    execution: groups.ExecutionConfig
    device: groups.DeviceConfig = groups.DeviceConfig()
    timing: groups.TimingConfig = groups.TimingConfig()
    profile: groups.ProfileConfig = groups.ProfileConfig()
    parallel: groups.ParallelConfig = groups.ParallelConfig()
    seed: int = SEED
    replicate: int = REPLICATE

    def conflicts(self) -> Iterator[str]:
        """Yields why the values do not go together."""
        several = f"parallel.processes={self.parallel.processes}" if self.parallel.processes > 1 else ""
        if several and self.workload.mode != "training":
            yield f"{several} with mode={self.workload.mode}: only training"
        if several and (workers := self.workload.loader_workers):
            yield f"{several} with workload.loader_workers={workers}: ranks start no processes of their own"
        if self.execution.quantisation != "none" and self.workload.mode == "training":
            yield f"execution.quantisation={self.execution.quantisation} with mode=training: only inference"
        if self.model.pruning != "none" and self.workload.mode == "training":
            yield f"model.pruning={self.model.pruning} with mode=training: only inference"
        named = self.workload.loader_file
        if named is None:
            return
        if not Path(named).is_file():
            yield f"workload.loader_file={named}: no such file"
        each, found = self.model.sample_bytes(self.sequence_length), Path(named).stat().st_size
        if found < each:
            yield f"workload.loader_file={named}: {found} bytes, and one sample takes {each}"


class ProfileRow(TimedRow):
    """One profiled step of a model; what it shares with its FLOP count and ceilings is joined in the table."""

    model: str = Field("", description="Name of its config.")
    workload: str = Field("", description="Name of its config.")
    batch_size: int | None = column("Samples a step; of each micro-batch with gradient accumulation.")
    sequence_length: int | None = column("Tokens a sample; empty for images.")
    precision: str = Field("", description="Name of its config: the format that was asked for.")
    execution: str = Field("", description="Name of its config.")
    effective_precision: str | None = column("The format that matmuls really used.")
    time_s: float | None = column("Undisturbed step: a CPU's 10th percentile of fastest windows, else the median.")
    time_p5_s: float | None = column("5th percentile of the steps.")
    time_p95_s: float | None = column("95th percentile of the steps.")
    median_time_s: float | None = MEDIAN_TIME
    machine_cost_percent: float | None = MACHINE_COST
    time_ci_low_s: float | None = TIME_CI_LOW
    time_ci_high_s: float | None = column("Upper end of that interval.")
    within_spread_percent: float | None = column("Standard deviation of a process's windows' medians, relative.")
    windows: int | None = column("Measured windows.")
    steps: int | None = column("Measured steps over all windows.")
    window_s: float | None = column("Total length of the measured windows.")
    warm_up_s: float | None = column("Time of the warm-up.")
    steady: bool | None = column("True if warm-up ended because the step time was steady.")
    first_call_s: float | None = column("The first step: lazy initialisation, autotuning, compilation.")
    forward_ms: float | None = column("Of a training step: model and loss. In marked steps apart.")
    backward_ms: float | None = column("The backward pass.")
    optimiser_ms: float | None = column("The optimiser's update alone.")
    other_ms: float | None = column("The rest: fetching a batch, unscaling, clipping, schedule, zero_grad.")
    phases_percent: float | None = column("Sum of the phases ÷ the step without marks that follows each, median.")
    devices: float | None = column("That several processes fill together; a CPU's share its threads' peak.")
    sent_bytes: float | None = column("By each of several processes in a step, as the network counted.")
    predicted_sent_bytes: float | None = column("The same by the formulas of ring collectives.")
    exposed_communication_ms: float | None = column("Traced pass: communication not hidden, of the rank with most.")
    transfer_percent: Percent | None = column("Collectives as long as the shortest rank's, traced, of who waits most.")
    waiting_percent: Percent | None = column("What its collectives take beyond that: waiting for others.")
    slowest_rank: int | None = column("The rank for which the others wait: it waits least itself.")
    ranks: str | None = column("JSON: a mapping a rank: its step, communication, memory.")
    weight_bytes: float | None = column("Of a quantised or packed model: weights that a pass reads, as they lie.")
    output_error: float | None = column("Of a quantised model: ‖logits' difference from before‖ ÷ ‖logits‖.")
    compile_s: float | None = column("Making and first calling a model that is not eager, beyond a steady step.")
    utilization_percent: Percent | None = column("The device's own measure of being busy.")
    utilization_source: str | None = column("The counter that gave it.")
    memory_bytes: int | None = column("Peak: CUDA allocator, or peak RSS above the baseline on a CPU.")
    memory_source: str | None = column("The counter that gave it.")
    energy_j: float | None = column("Per step; of a job that of all its devices.")
    power_w: float | None = column("Mean over the windows; of a job that of all its devices.")
    clock_mhz: float | None = column("Mean SM clock over the windows; a CPU reports none.")
    loss: float | None = column("After the last step; finite in a row that is ok.")
    relative_error: float | None = column("‖y − r‖F / ‖r‖F of an inference's y, r in float64; where asked for.")
    losses: str | None = column("JSON: losses of the first training steps, where asked for.")
    exact_losses: str | None = column("JSON: these by the same model in float64, where asked for.")
    varied_calls: int | None = column("Calls with as many batch sizes, where asked for.")
    varied_s: float | None = column("All of these calls, compilation included.")
    graphs: int | None = column("Graphs that torch.compile made in these calls.")
    recompilations: int | None = column("Of these calls after the first, those that compiled.")
    graph_breaks: int | None = column("Places at which torch.compile went back to Python.")
    unread_parameters: int | None = column("Of experts that no token of the last step chose; no training, eager.")
    expert_imbalance: float | None = column("Tokens of the busiest expert ÷ mean of all, mean over layers; same step.")
    kernel_busy_percent: Percent | None = column("Union of kernel intervals, traced pass ÷ untraced time.")
    sm_active_percent: Percent | None = column("Mean share of SMs with a warp resident (GPM).")
    occupancy_percent: Percent | None = column("Mean share of warp slots in use (GPM).")
    tensor_active_percent: Percent | None = column("Cycles in which a tensor pipe worked (GPM).")
    dram_active_percent: Percent | None = column("Cycles in which DRAM moved data (GPM).")
    sources_answered: str | None = column("The sources that answered, strictest first.")
    restriction: str | None = column("`MIG instance` or `vGPU`: why some values cannot be had.")
    graphics_active_percent: Percent | None = column("Any context of the GPU had work.")
    hmma_tensor_active_percent: Percent | None = column("Tensor pipe on 16-bit and TF32 matmuls.")
    imma_tensor_active_percent: Percent | None = column("Tensor pipe on integer matmuls.")
    dmma_tensor_active_percent: Percent | None = column("Tensor pipe on FP64 matmuls.")
    dfma_tensor_active_percent: Percent | None = column("Tensor pipe on FP64 multiply-adds.")
    fp64_active_percent: Percent | None = column("FP64 pipe, no tensor cores.")
    fp32_active_percent: Percent | None = column("FP32 pipe, no tensor cores.")
    fp16_active_percent: Percent | None = column("FP16 pipe, no tensor cores.")
    integer_active_percent: Percent | None = column("Integer pipe.")
    compute_busy_percent: Percent | None = column("Traced pass: compute kernels.")
    communication_percent: Percent | None = column("Traced pass: communication not overlapped by compute.")
    copy_percent: Percent | None = column("Traced pass: copies not overlapped by compute or communication.")
    idle_percent: Percent | None = column("Traced pass: nothing on the GPU.")
    input_wait_percent: Percent | None = column("The loop waited for its DataLoader's next batch.")
    launch_gaps_per_step: float | None = column("Gaps between kernels in a step, traced pass.")
    launch_gap_s: float | None = column("Median gap in which the GPU had nothing to do.")
    top_kernels: str | None = column("JSON: the five kernels with most time → share of device time, %.")
    matmul_percent: Percent | None = column("Traced: operators that multiply (kernels, on a CPU calls) ÷ wall time.")
    other_operators_percent: Percent | None = column("The same of all other operators.")
    uncounted_operators: str | None = column("JSON: operator with no formula → % of operators' own time, from 1 % on.")
    top_other_operators: str | None = column("JSON: the five other operators with most time → share of wall time, %.")
    modules: str | None = column("JSON: a traced step's modules by class: path, calls, ns, FLOPs, with all below it.")
    spent: str | None = column("JSON: traced pass: kind of time → ns of all traced steps, each nanosecond once.")
    executed_ratio: float | None = EXECUTED_RATIO
    issued_ratio: float | None = ISSUED_RATIO
    misaligned: str | None = MISALIGNED
    throttled_percent: Percent | None = column("Held back: share of windows (a GPU's clock), of CPU time (a quota).")
    power_capped_percent: Percent | None = column("Of that, by the power limit.")
    software_thermal_percent: Percent | None = column("Of that, by heat, as the driver limits it.")
    hardware_thermal_percent: Percent | None = column("Of that, by heat, as the hardware limits it.")
    power_brake_percent: Percent | None = column("Of that, by an external power brake.")
    memory_clock_mhz: float | None = column("Mean clock of DRAM.")
    temperature_c: float | None = column("Mean over the windows.")
    device_memory_bytes: float | None = column("In use on the device, by all processes.")
    other_processes: int | None = column("Other processes that used the GPU meanwhile; flags the row.")
    pcie_transmitted_gb_s: float | None = column("Sent over PCIe, mean.")
    pcie_received_gb_s: float | None = column("Received over PCIe, mean.")
    nvlink_transmitted_gb_s: float | None = column("Sent over NVLink, mean.")
    nvlink_received_gb_s: float | None = column("Received over NVLink, mean.")
    system_utilization_percent: Percent | None = column("Every process on the logical CPUs that this one may use.")
    other_processes_percent: Percent | None = column("What other processes took of these CPUs' time.")
    cgroup_utilization_percent: Percent | None = column("CPU time of this process's cgroup.")
    steal_percent: Percent | None = column("CPU time that the hypervisor gave to others.")
    voluntary_switches_per_s: float | None = column("This process's threads gave up their CPU.")
    involuntary_switches_per_s: float | None = column("This process's threads were taken off their CPU.")
    page_faults_per_s: float | None = column("Pages touched that the system had to give: of memory just asked for.")
    page_fault_s: float | None = column("Wall time of one, all threads writing; empty under 1 % of the step.")
    default_state_page_faults: float | None = column("A step, before the allocator was brought to its declared state.")
    default_state_time_s: float | None = column("A step then; empty where these faults take under 1 % of it.")
    kept_memory_time_s: float | None = column("A step while the allocator keeps its memory; empty as page_fault_s is.")
    sources: str | None = column("JSON: column → where its value comes from, over how many seconds.")
    reasons: str | None = column("JSON: column → why it is empty.")


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
