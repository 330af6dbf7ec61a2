"""Row of one profiled step of a model."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from mfulab.core.configs import REPLICATE, SEED
from mfulab.core.groups import (
    DeviceConfig,
    ExecutionConfig,
    ParallelConfig,
    PrecisionConfig,
    ProfileConfig,
    TimingConfig,
    WorkloadConfig,
)
from mfulab.core.measurement import Measurement
from mfulab.core.rows import TIME_CI_LOW, Percent, TimedRow
from mfulab.measurements.count_flops import CountFlopsConfig


class ProfileStepConfig(CountFlopsConfig):
    """One step of a model: of training, inference or decoding."""

    on_device: ClassVar[bool] = True
    axes: ClassVar[tuple[str, ...]] = ("model", "workload", "batch_size", "sequence_length", "precision", "execution")
    workload: WorkloadConfig
    precision: PrecisionConfig
    execution: ExecutionConfig
    device: DeviceConfig = DeviceConfig()
    timing: TimingConfig = TimingConfig()
    profile: ProfileConfig = ProfileConfig()
    parallel: ParallelConfig = ParallelConfig()
    seed: int = SEED
    replicate: int = REPLICATE

    @model_validator(mode="after")
    def _several_processes_train(self) -> "ProfileStepConfig":
        if self.parallel.processes > 1 and self.workload.mode != "training":
            raise ValueError(
                f"parallel.processes={self.parallel.processes} with mode={self.workload.mode}: only training"
            )
        if self.parallel.processes > 1 and self.workload.loader_workers:
            raise ValueError(
                f"parallel.processes={self.parallel.processes} with workload.loader_workers="
                f"{self.workload.loader_workers}: ranks start no processes of their own"
            )
        return self

    @model_validator(mode="after")
    def _quantised_models_are_not_trained(self) -> "ProfileStepConfig":
        if self.execution.quantisation != "none" and self.workload.mode == "training":
            raise ValueError(f"execution.quantisation={self.execution.quantisation} with mode=training: only inference")
        return self

    @model_validator(mode="after")
    def _pruned_models_are_not_trained(self) -> "ProfileStepConfig":
        if self.model.pruning != "none" and self.workload.mode == "training":
            raise ValueError(f"model.pruning={self.model.pruning} with mode=training: only inference")
        return self

    @model_validator(mode="after")
    def _file_holds_a_sample(self) -> "ProfileStepConfig":
        named = self.workload.loader_file
        if named is None:
            return self
        if not Path(named).is_file():
            raise ValueError(f"workload.loader_file={named}: no such file")
        each, found = self.model.sample_bytes(self.sequence_length), Path(named).stat().st_size
        if found < each:
            raise ValueError(f"workload.loader_file={named}: {found} bytes, and one sample takes {each}")
        return self


class ProfileRow(TimedRow):
    """One profiled step of a model; what it shares with its FLOP count and ceilings is joined in the table."""

    model: str = Field("", description="Name of the model.")
    workload: str = Field("", description="What a step does, by its name in config/workload/.")
    batch_size: int | None = Field(None, description="Samples of one call of the model.")
    sequence_length: int | None = Field(None, description="Tokens of a sample; empty for models that take none.")
    precision: str = Field("", description="Number format that was requested, by its name in config/precision/.")
    execution: str = Field("", description="How the step is issued, by its name in config/execution/.")
    effective_precision: str | None = Field(None, description="The format that matmuls really used.")
    time_s: float | None = Field(None, description="Median step.")
    time_p5_s: float | None = Field(None, description="5th percentile of the steps.")
    time_p95_s: float | None = Field(None, description="95th percentile of the steps.")
    time_ci_low_s: float | None = TIME_CI_LOW
    time_ci_high_s: float | None = Field(None, description="Upper end of the same interval.")
    within_spread_percent: float | None = Field(
        None, description="Standard deviation of the windows' medians inside a process, relative."
    )
    windows: int | None = Field(None, description="Measured windows over all processes.")
    steps: int | None = Field(None, description="Measured steps over all windows.")
    window_s: float | None = Field(None, description="Total length of the measured windows.")
    warm_up_s: float | None = Field(None, description="Time spent on warm-up, compilation included.")
    steady: bool | None = Field(None, description="True if warm-up ended because the step time was steady.")
    first_call_s: float | None = Field(
        None, description="The first step: lazy initialisation, autotuning, compilation."
    )
    forward_ms: float | None = Field(None, description="Of a training step: model and loss. In marked steps apart.")
    backward_ms: float | None = Field(None, description="Of a training step: the backward pass.")
    optimiser_ms: float | None = Field(None, description="The optimiser's update alone.")
    other_ms: float | None = Field(
        None, description="The rest: fetching a batch, unscaling, clipping, learning-rate schedule, zero_grad."
    )
    phases_percent: float | None = Field(
        None, description="Sum of the phases ÷ the step without marks that follows each, median."
    )
    devices: float | None = Field(
        None, description="Of several processes: devices that they fill together; a CPU's share its threads' peak."
    )
    sent_bytes: float | None = Field(
        None, description="By each of several processes in a step, as the network counted."
    )
    predicted_sent_bytes: float | None = Field(None, description="The same by the formulas of ring collectives.")
    exposed_communication_ms: float | None = Field(
        None, description="Of a step, traced pass: union of communication − union of compute, of the rank with most."
    )
    transfer_percent: Percent | None = Field(
        None, description="Traced pass: collectives as long as the shortest rank's, of the rank that waits most."
    )
    waiting_percent: Percent | None = Field(
        None, description="What its collectives take beyond that: waiting for others."
    )
    slowest_rank: int | None = Field(None, description="The rank for which the others wait: it waits least itself.")
    ranks: str | None = Field(None, description="JSON: a mapping a rank: its step, communication, memory.")
    weight_bytes: float | None = Field(
        None, description="Of a quantised or packed model: weights that a pass reads, as they lie."
    )
    output_error: float | None = Field(
        None, description="Of a quantised model: norm of its logits' difference from before ÷ norm of the logits."
    )
    compile_s: float | None = Field(
        None,
        description="Making and first calling a traced, scripted, compiled or captured model, beyond a steady step.",
    )
    utilization_percent: Percent | None = Field(None, description="The device's own measure of being busy.")
    utilization_source: str | None = Field(None, description="What reported `utilization_percent`.")
    memory_bytes: int | None = Field(None, description="Peak: CUDA allocator, or peak RSS above the baseline on a CPU.")
    memory_source: str | None = Field(None, description="What reported `memory_bytes`.")
    energy_j: float | None = Field(None, description="Per step.")
    power_w: float | None = Field(None, description="Mean over the windows.")
    clock_mhz: float | None = Field(None, description="Mean SM clock over the windows; a CPU reports none.")
    loss: float | None = Field(None, description="After the last step; finite in a row that is ok.")
    relative_error: float | None = Field(
        None, description="‖y − r‖F / ‖r‖F of an inference's output y, r by the same model in float64; where asked for."
    )
    losses: str | None = Field(None, description="JSON: losses of the first training steps, where asked for.")
    exact_losses: str | None = Field(None, description="JSON: these by the same model in float64, where asked for.")
    varied_calls: int | None = Field(None, description="Calls with as many batch sizes, where asked for.")
    varied_s: float | None = Field(None, description="All of these calls, compilation included.")
    graphs: int | None = Field(None, description="Graphs that torch.compile made in these calls.")
    recompilations: int | None = Field(None, description="Of these calls after the first, those that compiled.")
    graph_breaks: int | None = Field(None, description="Places at which torch.compile went back to Python.")
    unread_parameters: int | None = Field(
        None, description="Of experts that no token of the last step chose; inference and decoding, eager."
    )
    expert_imbalance: float | None = Field(
        None, description="Tokens of the busiest expert ÷ mean of all, the mean over layers; of the same step."
    )
    kernel_busy_percent: Percent | None = Field(None, description="Union of kernel intervals ÷ wall time, traced pass.")
    sm_active_percent: Percent | None = Field(
        None, description="Cycles with at least one resident warp, mean over SMs."
    )
    occupancy_percent: Percent | None = Field(None, description="Resident warps ÷ the most that fit.")
    tensor_active_percent: Percent | None = Field(None, description="Cycles in which any tensor pipe was active.")
    dram_active_percent: Percent | None = Field(None, description="Cycles in which the DRAM interface was active.")
    sources_answered: str | None = Field(None, description="The sources that answered, strictest first.")
    restriction: str | None = Field(None, description="`MIG instance` or `vGPU`: why some values cannot be had.")
    graphics_active_percent: Percent | None = Field(None, description="Any context of the GPU had work.")
    hmma_tensor_active_percent: Percent | None = Field(None, description="Tensor pipe on 16-bit and TF32 matmuls.")
    imma_tensor_active_percent: Percent | None = Field(None, description="Tensor pipe on integer matmuls.")
    dmma_tensor_active_percent: Percent | None = Field(None, description="Tensor pipe on FP64 matmuls.")
    dfma_tensor_active_percent: Percent | None = Field(None, description="Tensor pipe on FP64 multiply-adds.")
    fp64_active_percent: Percent | None = Field(None, description="FP64 pipe, no tensor cores.")
    fp32_active_percent: Percent | None = Field(None, description="FP32 pipe, no tensor cores.")
    fp16_active_percent: Percent | None = Field(None, description="FP16 pipe, no tensor cores.")
    integer_active_percent: Percent | None = Field(None, description="Integer pipe.")
    compute_busy_percent: Percent | None = Field(None, description="Traced pass: compute kernels.")
    communication_percent: Percent | None = Field(
        None, description="Traced pass: communication not overlapped by compute."
    )
    copy_percent: Percent | None = Field(
        None, description="Traced pass: copies not overlapped by compute or communication."
    )
    idle_percent: Percent | None = Field(None, description="Traced pass: nothing on the GPU.")
    input_wait_percent: Percent | None = Field(None, description="The loop waited for its DataLoader's next batch.")
    launch_gaps_per_step: float | None = Field(
        None, description="Gaps between kernels in which the GPU had nothing to do, a step."
    )
    launch_gap_s: float | None = Field(None, description="Median gap in which the GPU had nothing to do.")
    top_kernels: str | None = Field(
        None, description="JSON: the five kernels with most time → share of device time, %."
    )
    matmul_percent: Percent | None = Field(
        None, description="Traced pass: time of operators that multiply ÷ wall time; a GPU's kernels, a CPU's calls."
    )
    other_operators_percent: Percent | None = Field(None, description="The same of all other operators.")
    uncounted_operators: str | None = Field(
        None, description="JSON: operator without a FLOP formula → % of operators' own time, traced pass, from 1 % on."
    )
    top_other_operators: str | None = Field(
        None, description="JSON: the five other operators with most time → share of wall time, %."
    )
    spent: str | None = Field(
        None, description="JSON: traced pass: kind of time → ns of all traced steps, each nanosecond once."
    )
    throttled_percent: Percent | None = Field(
        None, description="Held back: share of the windows (a GPU's clock), of the CPU time wanted (a CPU's quota)."
    )
    power_capped_percent: Percent | None = Field(None, description="Of that, by the power limit.")
    software_thermal_percent: Percent | None = Field(None, description="Time held back by the driver for heat.")
    hardware_thermal_percent: Percent | None = Field(None, description="Time held back by the hardware for heat.")
    power_brake_percent: Percent | None = Field(None, description="Time held back by the external power brake.")
    memory_clock_mhz: float | None = Field(None, description="Mean clock of the memory.")
    temperature_c: float | None = Field(None, description="Mean over the windows.")
    device_memory_bytes: float | None = Field(None, description="In use on the device, by all processes.")
    other_processes: int | None = Field(None, description="Other processes that used the GPU meanwhile; flags the row.")
    pcie_transmitted_gb_s: float | None = Field(None, description="Sent over PCIe.")
    pcie_received_gb_s: float | None = Field(None, description="Received over PCIe.")
    nvlink_transmitted_gb_s: float | None = Field(None, description="Sent over NVLink.")
    nvlink_received_gb_s: float | None = Field(None, description="Received over NVLink.")
    system_utilization_percent: Percent | None = Field(
        None, description="Every process on the logical CPUs that this one may use."
    )
    other_processes_percent: Percent | None = Field(None, description="What other processes took of these CPUs' time.")
    cgroup_utilization_percent: Percent | None = Field(None, description="CPU time of this process's cgroup.")
    steal_percent: Percent | None = Field(None, description="CPU time that the hypervisor gave to others.")
    voluntary_switches_per_s: float | None = Field(None, description="This process's threads gave up their CPU.")
    involuntary_switches_per_s: float | None = Field(
        None, description="This process's threads were taken off their CPU."
    )
    page_faults_per_s: float | None = Field(
        None, description="This process touched pages that the system had to give it: of memory just asked for."
    )
    page_fault_s: float | None = Field(
        None,
        description="Wall time of one: a page's arrival, clearing and return, all threads writing to new pages after"
        " the windows. Empty where faults take under 1 % of the step.",
    )
    default_state_page_faults: float | None = Field(
        None, description="A step, before the C library's allocator was brought to its declared state, in the warm-up."
    )
    default_state_time_s: float | None = Field(
        None, description="A step then; empty where these faults take under 1 % of it, so that the state is the same."
    )
    kept_memory_time_s: float | None = Field(
        None, description="A step while the allocator returns nothing to the system; empty where faults take under 1 %."
    )
    sources: str | None = Field(None, description="JSON: column → where its value comes from, over how many seconds.")
    reasons: str | None = Field(None, description="JSON: column → why it is empty.")


MEASUREMENT = Measurement(
    "profile",
    ProfileStepConfig,
    ProfileRow,
    "Profiling {wildcards.run}",
    "model mode batch_size precision execution hardware status time_s mfu_percent utilization_percent"
    " hfu_percent samples_per_s tokens_per_s memory_bytes energy_j verdict",
    runtime_min=20,
    position=10,
)
