"""Row of a load whose true utilization is known, and what each counter read of it."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import DeviceConfig, PrecisionConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row


class ReadUtilizationConfig(StepConfig):
    """A load of known utilization, and how often its device is asked."""

    axes: ClassVar[tuple[str, ...]] = ("load", "polling_period_s", "precision")
    load: Literal["idle", "spin_one", "copies", "duty_25", "duty_50", "duty_75", "padded", "steady", "bursty"] = Field(
        description="Nothing; a core or SM spinning; a thread copying; matmuls for so much of the time; half padding."
    )
    polling_period_s: float = Field(0.2, ge=1e-3, le=60, description="Seconds between two single readings.")
    load_time_s: float = Field(4.0, gt=0, le=600, description="Length of the loop.")
    precision: PrecisionConfig
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED


class ReadingRow(Row):
    """Each `…_percent` of a counter is a share of what the truth is a share of; `reasons` says why one is empty."""

    load: str = Field("", description="Name of the load.")
    precision: str = Field("", description="Number format that was requested, by its name in config/precision/.")
    polling_period_s: float | None = Field(None, description="Seconds between two single readings.")
    window_s: float | None = Field(None, description="Length of the loop.")
    units: int | None = Field(None, description="CPU cores that its threads can fill, or SMs.")
    duty_percent: Percent | None = Field(None, description="Of the window at work, by the loop's own clock.")
    truth_percent: Percent | None = Field(None, description="duty_percent × share of the units that the load occupies.")
    useful_percent: Percent | None = Field(None, description="Of the executed FLOPs, those that are no padding.")
    flops: int | None = Field(None, description="Executed in the window.")
    useful_flops: int | None = Field(None, description="FLOPs in the window without padding.")
    mfulab_percent: Percent | None = Field(None, description="The column utilization_percent of every profiled step.")
    psutil_process_percent: Percent | None = Field(None, description="Process.cpu_percent ÷ cores.")
    psutil_machine_percent: Percent | None = Field(None, description="psutil.cpu_percent: all logical CPUs, everyone.")
    proc_stat_percent: Percent | None = Field(None, description="/proc/stat: logical CPUs allowed here, everyone.")
    cgroup_percent: Percent | None = Field(None, description="CPU time of the cgroup ÷ cores.")
    profiler_percent: Percent | None = Field(
        None, description="torch.profiler over a second of the load: time in operators, on a GPU in kernels."
    )
    nvml_percent: Percent | None = Field(None, description="nvidia-smi's utilization: a kernel was running.")
    sm_active_percent: Percent | None = Field(None, description="GPM: SMs with a warp.")
    tensor_active_percent: Percent | None = Field(None, description="GPM.")
    other_processes_percent: Percent | None = Field(None, description="CPU time of others meanwhile.")
    before_percent: Percent | None = Field(None, description="One reading, the last before the loop.")
    during_percent: Percent | None = Field(None, description="One reading, in the middle of the loop.")
    after_percent: Percent | None = Field(
        None, description="One reading, the first whose period begins after the loop."
    )
    polls: int | None = Field(None, description="Readings whose period lies inside the loop.")
    polled_mean_percent: Percent | None = Field(None, description="Mean of the polls in the window.")
    polled_low_percent: Percent | None = Field(None, description="Lowest poll in the window.")
    polled_high_percent: Percent | None = Field(None, description="Highest poll in the window.")
    memory_utilization_percent: Percent | None = Field(None, description="NVML: time in which memory was accessed.")
    memory_used_percent: Percent | None = Field(None, description="Memory in use ÷ total, the most that was polled.")
    sources: str | None = Field(None, description="JSON: column → where its value comes from, over how many seconds.")
    reasons: str | None = Field(None, description="JSON: column → why it is empty.")


MEASUREMENT = Measurement(
    "readings",
    ReadUtilizationConfig,
    ReadingRow,
    "Reading every counter of {wildcards.run}",
    "load polling_period_s hardware status truth_percent mfulab_percent psutil_process_percent"
    " psutil_machine_percent proc_stat_percent cgroup_percent profiler_percent nvml_percent sm_active_percent"
    " mfu_percent before_percent during_percent after_percent",
    position=30,
)
