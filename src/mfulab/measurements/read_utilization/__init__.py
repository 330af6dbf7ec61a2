"""Row of a load whose true utilization is known, and what each counter read of it."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import DeviceConfig, PrecisionConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row, column, counter_column, json_column


class ReadUtilizationConfig(StepConfig):
    """A load of known utilization, and how often the device's counters are polled."""

    axes: ClassVar[tuple[str, ...]] = ("load", "polling_period_s", "precision")
    load: Literal[
        "idle", "spin_one", "copies", "duty_25", "duty_50", "duty_75", "padded", "steady", "bursty"
    ] = Field(
        "steady",
        description="Load: nothing; a core or SM spinning; a thread copying; matmuls part of the time; half padding.",
    )
    polling_period_s: float = Field(
        0.2, ge=1e-3, le=60, description="Seconds between two single readings."
    )
    load_time_s: float = Field(4.0, gt=0, le=600, description="Length of the loop.")
    precision: PrecisionConfig
    device: DeviceConfig = DeviceConfig()
    seed: int = SEED


class ReadingRow(Row):
    """Readings of every counter under a load of known utilization. Each percentage has the same
    denominator as the true value."""

    load: str = Field("", description="Name of the load.")
    precision: str = Field("", description="Name of the precision that was asked for.")
    polling_period_s: float | None = column("Seconds between two single readings.")
    window_s: float | None = counter_column("Length of the loop.")
    units: int | None = column("CPU cores that the process's threads can fill, or SMs.")
    duty_percent: Percent | None = column("Share of the window at work, by the loop's own clock.")
    truth_percent: Percent | None = column(
        "duty_percent × share of the units that the load occupies."
    )
    useful_percent: Percent | None = counter_column(
        "Share of the executed FLOPs that is no padding."
    )
    flops: int | None = column("FLOPs executed in the window.")
    useful_flops: int | None = counter_column("FLOPs of matmuls without padding.")
    mfulab_percent: Percent | None = column(
        "Utilization by mfulab, as utilization_percent of every profiled step."
    )
    psutil_process_percent: Percent | None = column("psutil's Process.cpu_percent ÷ cores.")
    psutil_machine_percent: Percent | None = column(
        "psutil.cpu_percent: all logical CPUs, everyone."
    )
    proc_stat_percent: Percent | None = column(
        "Busy share of the allowed logical CPUs by /proc/stat, everyone."
    )
    cgroup_percent: Percent | None = column("CPU time of the cgroup ÷ cores.")
    profiler_percent: Percent | None = column(
        "Time in operators, on a GPU in kernels, by torch.profiler in a second."
    )
    nvml_percent: Percent | None = column(
        "Utilization by nvidia-smi: share of time with a kernel running."
    )
    sm_active_percent: Percent | None = column("Share of SMs with a warp resident (GPM).")
    tensor_active_percent: Percent | None = column("Cycles in which a tensor pipe worked (GPM).")
    other_processes_percent: Percent | None = column("CPU time of other processes during the loop.")
    before_percent: Percent | None = column("Last single reading before the loop.")
    during_percent: Percent | None = column("Single reading nearest to the middle of the loop.")
    after_percent: Percent | None = column(
        "First single reading whose period begins after the loop."
    )
    polls: int | None = column("Number of readings whose period lies inside the loop.")
    sources: str | None = json_column(
        "column → name of the source of its value, and over how many seconds; in no other language."
    )
    reasons: str | None = json_column("column → reason why it is empty.")


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
