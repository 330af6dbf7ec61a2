"""Row of a number format."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import PrecisionConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Row, column, counter_column


class NumberFormatsConfig(StepConfig):
    """One number format: its parameters, and rounding errors in it."""

    axes: ClassVar[tuple[str, ...]] = ("precision",)
    on_device: ClassVar[bool] = False
    precision: PrecisionConfig
    sum_length: int = Field(
        4096, ge=2, le=1 << 24, description="Numbers a sum; fewer where it would leave the range."
    )
    seed: int = SEED


class NumberFormatsRow(Row):
    """Facts and errors of a number format. Errors are relative and medians over sequences; they are
    empty if a sum overflows."""

    precision: str = Field("", description="Name of the precision that was asked for.")
    bits: int | None = column("Bits that carry information; tf32 is stored in 32.")
    exponent_bits: int | None = column("Bits of the exponent.")
    mantissa_bits: int | None = column("Explicit bits of the significand.")
    bias: int | None = column("Number that is subtracted from the stored exponent.")
    epsilon: float | None = column("Distance from 1 to the next larger number.")
    largest: float | None = column("Largest finite number.")
    smallest_normal: float | None = column("Smallest positive normal number.")
    smallest_subnormal: float | None = counter_column("Smallest positive number.")
    tenths_add_up: bool | None = column("True if 0.1 + 0.2 == 0.3.")
    sum_length: int | None = column("Numbers in (0, 1) in a sum.")
    naive_sum_error: float | None = column("Relative error of adding one number after the other.")
    ascending_sum_error: float | None = counter_column(
        "Relative error of the naive sum, smallest number first."
    )
    descending_sum_error: float | None = counter_column(
        "Relative error of the naive sum, largest number first."
    )
    pairwise_sum_error: float | None = column(
        "Relative error of adding neighbours, then neighbours of the sums."
    )
    kahan_sum_error: float | None = column("Relative error of the sum with Kahan's correction.")
    toward_zero_sum_error: float | None = counter_column(
        "Relative error of the naive sum, each sum cut off."
    )
    up_sum_error: float | None = counter_column(
        "Relative error of the naive sum, each sum rounded towards +∞."
    )
    down_sum_error: float | None = counter_column(
        "Relative error of the naive sum, each sum rounded towards −∞."
    )
    relative_tolerance: float | None = counter_column(
        "Smallest relative tolerance that accepts x · 1.5 / 1.5 for every x."
    )
    squares_difference_error: float | None = counter_column(
        "Relative error of a·a − b·b for a, b near 1: cancellation."
    )
    factored_difference_error: float | None = counter_column(
        "Relative error of (a − b)·(a + b) for a, b near 1."
    )


MEASUREMENT = Measurement(
    "formats",
    NumberFormatsConfig,
    NumberFormatsRow,
    "Rounding in {wildcards.run}",
    "precision status bits exponent_bits mantissa_bits epsilon largest smallest_normal naive_sum_error"
    " pairwise_sum_error kahan_sum_error",
    priority=10,
    position=90,
)
