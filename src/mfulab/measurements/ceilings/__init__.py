"""Ceilings of a device: the best matmul of each precision, and the memory bandwidth."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import REPLICATE, StepConfig
from mfulab.core.groups import DeviceConfig, Name, PrecisionConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import TimedRow, column, counter_column


class CeilingsConfig(StepConfig):
    """One ceiling: the best matmul in one precision, or the memory bandwidth."""

    axes: ClassVar[tuple[str, ...]] = ("ceiling",)
    ceiling: Name = Field(description="Name of a precision, or `memory`.")
    precision: PrecisionConfig | None = column(
        "Precision of the matmul ceiling; empty for `memory`."
    )
    device: DeviceConfig = DeviceConfig()
    search: Literal["careful", "quick"] = Field(
        "careful",
        description="Search on a GPU: every shape until the clock has settled, or two within two seconds.",
    )
    replicate: int = REPLICATE


class CeilingRow(TimedRow):
    """One ceiling of the device: matmuls in one precision, or memory bandwidth. Of several
    processes the best counts on a CPU, else the median."""

    ceiling: str = Field("", description="Name of a precision, or `memory`.")
    measured_tflop_s: float | None = column("Best large matmul found on this device.")
    measured_ci_low_tflop_s: float | None = counter_column(
        "Lower end of measured_tflop_s's 95 % interval, between processes."
    )
    measured_ci_high_tflop_s: float | None = counter_column(
        "Upper end of measured_tflop_s's 95 % interval, between processes."
    )
    measured_with: str | None = counter_column(
        "torch (_nt, _tn: transposed), another library, a faster kernel or model."
    )
    burst_tflop_s: float | None = counter_column(
        "Best matmul in a GPU's first moments, at a clock that it cannot hold."
    )
    measured_shape: str | None = counter_column(
        "Best matmul's MxNxK, empty for a model's; elements of a triad's vector."
    )
    emulated: bool | None = column(
        "True if the device has no units of this format: fp32's ceiling stands for it."
    )
    swept_tflop_s: float | None = column(
        "Rate that `ceilings` measured, where a run of the sweep was faster."
    )
    raised_by: str | None = column("Run of the sweep that was faster and became the ceiling.")
    computed_tflop_s: float | None = column("Dense peak from device properties.")
    computed_clock_mhz: float | None = column(
        "Clock in the computed peak, which is proportional to it."
    )
    computed_formula: str | None = column("Factors of the computed peak.")
    computed_source: str | None = counter_column("Source of each factor of the computed peak.")
    datasheet_tflop_s: float | None = column("Dense peak as the datasheet prints it.")
    max_clock_tflop_s: float | None = counter_column(
        "Dense peak at the highest clock that the device allows."
    )
    measured_gb_s: float | None = column("Triad a[i] = b[i] + s·c[i], three streams counted.")
    measured_ci_low_gb_s: float | None = counter_column(
        "Lower end of measured_gb_s's 95 % interval, between processes."
    )
    measured_ci_high_gb_s: float | None = counter_column(
        "Upper end of measured_gb_s's 95 % interval, between processes."
    )
    computed_gb_s: float | None = column(
        "Memory clock × bus width × 2, if the device reports them."
    )
    clock_mhz: float | None = column("Mean SM clock while measuring.")
    threads: int | None = column("CPU threads used.")


MEASUREMENT = Measurement(
    "ceilings",
    CeilingsConfig,
    CeilingRow,
    "What {wildcards.hardware} can do at best: {wildcards.run}",
    "ceiling hardware status measured_tflop_s computed_tflop_s datasheet_tflop_s measured_gb_s computed_gb_s",
    priority=20,
    position=60,
)
