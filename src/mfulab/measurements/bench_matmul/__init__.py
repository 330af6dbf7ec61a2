"""Matmuls by one implementation each."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import REPLICATE, SEED, StepConfig
from mfulab.core.groups import SIZE, DeviceConfig, KernelConfig, PrecisionConfig, Size, TimingConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import TIME_CI_LOW, Percent, TimedRow


class BenchMatmulConfig(StepConfig):
    """One matmul by one implementation."""

    axes: ClassVar[tuple[str, ...]] = ("kernel", "size", "precision")
    kernel: KernelConfig
    size: Size = Field(description=SIZE)
    precision: PrecisionConfig
    device: DeviceConfig = DeviceConfig()
    timing: TimingConfig = TimingConfig()
    first_calls: int | None = Field(
        None, ge=2, le=1000, description="Calls timed together from the first on, as by a script without warm-up."
    )
    seed: int = SEED
    replicate: int = REPLICATE

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, m, n, k)."""
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

    kernel: str = Field("", description="Name of the kernel, as in config/kernel/.")
    family: str = Field("", description="CPU, Numba CUDA, CUDA C, Triton, tile language or library.")
    after: str = Field("", description="Rung below on the ladder of its family; empty: the lowest.")
    adds: str = Field("", description="What this rung does that the one below does not.")
    size: str = Field("", description="Shape by its name: one side of a square, or MxNxK.")
    precision: str = Field("", description="Number format that was requested, by its name in config/precision/.")
    batch: int | None = Field(None, description="Matmuls of one call.")
    m: int | None = Field(None, description="Rows of A and C.")
    n: int | None = Field(None, description="Columns of B and C.")
    k: int | None = Field(None, description="Columns of A, rows of B.")
    effective_precision: str | None = Field(None, description="The format whose rounding the error shows.")
    time_s: float | None = Field(None, description="Median of `hot_time_s`: launches back to back.")
    time_ci_low_s: float | None = TIME_CI_LOW
    time_ci_high_s: float | None = Field(None, description="Upper end of the same interval.")
    hot_time_s: float | None = Field(None, description="Median call back to back, operands in the caches.")
    hot_iqr_s: float | None = Field(None, description="Interquartile range of `hot_time_s`.")
    cold_time_s: float | None = Field(None, description="Caches flushed before each launch.")
    cold_iqr_s: float | None = Field(None, description="Interquartile range of `cold_time_s`.")
    first_call_s: float | None = Field(None, description="JIT compilation included.")
    first_calls: int | None = Field(None, description="Calls in first_calls_mean_s.")
    first_calls_mean_s: float | None = Field(
        None, description="Mean of that many calls, the first among them: what a script without warm-up prints."
    )
    allocation_s: float | None = Field(None, description="A, B and C; on a CPU their pages are touched.")
    host_to_device_s: float | None = Field(None, description="A and B from pageable memory.")
    device_to_host_s: float | None = Field(None, description="Copying C back to pageable memory.")
    host_to_device_pinned_s: float | None = Field(None, description="Copying A and B from page-locked memory.")
    device_to_host_pinned_s: float | None = Field(None, description="Copying C back to page-locked memory.")
    end_to_end_s: float | None = Field(None, description="NumPy arrays in, NumPy array out.")
    reference_time_s: float | None = Field(None, description="cuBLAS (CPU: torch) interleaved in the same run.")
    reference_name: str | None = Field(None, description="The library against which the kernel is timed.")
    reference_cold_time_s: float | None = Field(
        None, description="Median call of the reference after the caches were flushed."
    )
    flops: int | None = Field(None, description="2·batch·m·n·k.")
    bytes_moved: int | None = Field(None, description="A and B read once, C written once.")
    relative_error: float | None = Field(None, description="‖C−R‖F / ‖R‖F against float64 of the quantised inputs.")
    max_absolute_error: float | None = Field(None, description="Largest absolute difference from the float64 result.")
    tolerance: float | None = Field(None, description="relative_error above it makes the row `incorrect`.")
    repetitions: int | None = Field(None, description="Hot repetitions; each is a group of back-to-back calls.")
    unheld_repetitions: int | None = Field(
        None, description="Of these, on a GPU: launches may have waited for the host, as a call that synchronises does."
    )
    block: str | None = Field(None, description="Threads of a block, by dimension.")
    grid: str | None = Field(None, description="Blocks of the grid, by dimension.")
    registers: int | None = Field(None, description="Per thread, from the compiler.")
    shared_memory_bytes: int | None = Field(None, description="Shared memory of a block.")
    spill_bytes: int | None = Field(None, description="Registers of a thread that were spilled to memory.")
    occupancy_percent: Percent | None = Field(None, description="Theoretical, from registers and shared memory.")
    clock_mhz: float | None = Field(None, description="Mean SM clock meanwhile; a CPU reports none.")
    threads: int | None = Field(None, description="CPU threads.")
    other_processes_percent: Percent | None = Field(
        None, description="On a CPU, while timing: what other processes took of the logical CPUs that this one may use."
    )


MEASUREMENT = Measurement(
    "matmul",
    BenchMatmulConfig,
    MatmulRow,
    "Multiplying {wildcards.run}",
    "kernel size precision hardware status time_s tflop_s share_of_measured_percent share_of_reference_percent"
    " relative_error end_to_end_s",
    runtime_min=20,
    position=20,
)
