"""Matmuls, each by one implementation."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import REPLICATE, SEED, StepConfig
from mfulab.core.groups import SIZE, DeviceConfig, KernelConfig, PrecisionConfig, Size, TimingConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import (
    MACHINE_COST,
    MEDIAN_TIME,
    TIME_CI_LOW,
    Percent,
    TimedRow,
    column,
    counter_column,
)


class BenchMatmulConfig(StepConfig):
    """One matmul by one implementation."""

    axes: ClassVar[tuple[str, ...]] = ("kernel", "size", "precision")
    kernel: KernelConfig
    size: Size = Field("1024", description=SIZE)
    precision: PrecisionConfig
    device: DeviceConfig = DeviceConfig()
    timing: TimingConfig = TimingConfig()
    first_calls: int | None = Field(
        None, ge=2, le=1000, description="Number of first calls that are timed together."
    )
    transfers: bool = Field(
        False, description="Time allocation and transfers though a GPU's windows are short."
    )
    seed: int = SEED
    replicate: int = REPLICATE

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Sizes (batch, m, n, k). Raises ValueError if `size` has any other form."""
        sides = [int(side) for side in self.size.split("x")]
        match sides:
            case [n]:
                return (1, n, n, n)
            case [m, n, k]:
                return (1, m, n, k)
            case [batch, m, n, k]:
                return (batch, m, n, k)
        raise ValueError(f"size={self.size}: give N, MxNxK or BxMxNxK")


class MatmulRow(TimedRow):
    """One measured matmul."""

    kernel: str = Field("", description="Name of the implementation.")
    family: str = Field(
        "", description="CPU, Numba CUDA, CUDA C, Triton, tile language or library."
    )
    after: str = Field(
        "", description="Kernel one rung below on the ladder of its family; empty: the lowest."
    )
    adds: str = Field(
        "",
        description="Technique that this kernel adds to the one below, as its own file names it in"
        " English; figures look up `kernel` in their language.",
    )
    size: str = Field("", description="Size as asked for: N, MxNxK or BxMxNxK.")
    precision: str = Field("", description="Name of the precision that was asked for.")
    batch: int | None = column("Number of matmuls in a batch.")
    m: int | None = column("Rows of A and C.")
    n: int | None = column("Columns of B and C.")
    k: int | None = column("Columns of A, rows of B.")
    effective_precision: str | None = column("Number format whose rounding the error shows.")
    time_s: float | None = column(
        "Undisturbed launch, back to back: a CPU's 10th percentile, else the median."
    )
    median_time_s: float | None = MEDIAN_TIME
    machine_cost_percent: float | None = MACHINE_COST
    time_ci_low_s: float | None = TIME_CI_LOW
    time_ci_high_s: float | None = column("Upper end of the 95 % confidence interval of `time_s`.")
    hot_time_s: float | None = counter_column("Median of repetitions back to back, caches warm.")
    hot_iqr_s: float | None = counter_column("Interquartile range of the hot repetitions.")
    cold_time_s: float | None = counter_column("Median launch with caches flushed before each.")
    cold_iqr_s: float | None = counter_column("Interquartile range of the cold launches.")
    first_call_s: float | None = column("First call, JIT compilation included.")
    first_calls: int | None = column("Number of calls in first_calls_mean_s.")
    first_calls_mean_s: float | None = column(
        "Mean of the first calls: the time that a script without warm-up prints."
    )
    allocation_s: float | None = column(
        "Allocation of A, B and C, whose pages are touched on a CPU."
    )
    host_to_device_s: float | None = column("Copy of A and B to the GPU from pageable memory.")
    device_to_host_s: float | None = column("Copy of C from the GPU to pageable memory.")
    host_to_device_pinned_s: float | None = counter_column(
        "Copy of A and B to the GPU from page-locked memory."
    )
    device_to_host_pinned_s: float | None = counter_column(
        "Copy of C from the GPU to page-locked memory."
    )
    end_to_end_s: float | None = column("Time from arrays on the host to the result on the host.")
    reference_time_s: float | None = counter_column(
        "Time of the interleaved reference, at the quantile of `time_s`."
    )
    reference_clock_mhz: float | None = counter_column("Mean SM clock while the reference ran.")
    reference_name: str | None = column("Library matmul that was interleaved.")
    reference_cold_time_s: float | None = counter_column(
        "Time of the reference with caches flushed."
    )
    flops: int | None = column("FLOPs of the matmul: 2·batch·m·n·k.")
    bytes_moved: int | None = column("A and B read once, C written once.")
    relative_error: float | None = column(
        "‖C−R‖F / ‖R‖F of the kernel alone: R is the float64 product of the inputs as the format"
        " rounds them, so that int8 has 0. The figure `matmul_precision` adds what rounding costs."
    )
    max_absolute_error: float | None = column("Largest |C − R| of an element.")
    tolerance: float | None = column(
        "Largest accepted relative_error; above it the row is `incorrect`."
    )
    repetitions: int | None = counter_column(
        "Hot repetitions; each is a group of back-to-back calls."
    )
    unheld_repetitions: int | None = counter_column(
        "Hot repetitions on a GPU whose launches may have waited for the host."
    )
    block: str | None = column("Thread block or tile that was used.")
    grid: str | None = column("Blocks that were launched.")
    registers: int | None = column("Registers per thread, from the compiler.")
    shared_memory_bytes: int | None = counter_column("Shared memory per block, static and dynamic.")
    spill_bytes: int | None = column("Registers spilled to local memory, per thread.")
    occupancy_percent: Percent | None = column(
        "Theoretical occupancy, from registers and shared memory."
    )
    clock_mhz: float | None = column("Mean SM clock while measuring.")
    power_w: float | None = column("Power of the GPU at a moment of sustained calls.")
    burst_time_s: float | None = counter_column(
        "Launch on a GPU in 0.02 s of calls after 2 s of rest, before a power limit acts."
    )
    burst_clock_mhz: float | None = counter_column("SM clock in the burst of burst_time_s.")
    burst_power_w: float | None = counter_column("Power of the GPU in the burst of burst_time_s.")
    threads: int | None = column("CPU threads used.")
    other_processes_percent: Percent | None = column(
        "Share of the allowed logical CPUs that others took while timing."
    )


MEASUREMENT = Measurement(
    "matmul",
    BenchMatmulConfig,
    MatmulRow,
    "Multiplying {wildcards.run}",
    "kernel size precision hardware status time_s precision_percent tflop_s share_of_measured_percent"
    " share_of_reference_percent relative_error end_to_end_s",
    runtime_min=20,
    position=20,
)
