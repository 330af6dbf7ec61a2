"""Row of a number format."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import PrecisionConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row


class NumberFormatsConfig(StepConfig):
    """One number format: its parts, and what rounding does in it."""

    axes: ClassVar[tuple[str, ...]] = ("precision",)
    on_device: ClassVar[bool] = False
    precision: PrecisionConfig
    sum_length: int = Field(
        4096, ge=2, le=1 << 24, description="Numbers a sum; fewer where their sum would leave the format's range."
    )
    seed: int = SEED


class NumberFormatsRow(Row):
    """Errors are relative, medians over independent sequences; empty if a sum left the format's range."""

    precision: str = Field("", description="Name of the number format.")
    bits: int | None = Field(None, description="That carry information; tf32 is stored in 32.")
    exponent_bits: int | None = Field(None, description="Bits of the exponent.")
    mantissa_bits: int | None = Field(None, description="Explicit bits of the significand.")
    bias: int | None = Field(None, description="Subtracted from the stored exponent.")
    epsilon: float | None = Field(None, description="Distance from 1 to the next larger number.")
    largest: float | None = Field(None, description="Largest finite number.")
    smallest_normal: float | None = Field(None, description="Smallest positive number with a full mantissa.")
    smallest_subnormal: float | None = Field(None, description="Smallest positive number.")
    tenths_add_up: bool | None = Field(None, description="True if 0.1 + 0.2 == 0.3.")
    last_counted: float | None = Field(None, description="Where counting by ones stops.")
    sum_length: int | None = Field(None, description="Numbers in (0, 1) a sum and a dot product.")
    naive_sum_error: float | None = Field(None, description="Relative error of a sum one after the other.")
    ascending_sum_error: float | None = Field(None, description="Naive, smallest number first.")
    descending_sum_error: float | None = Field(None, description="Naive, largest number first.")
    pairwise_sum_error: float | None = Field(None, description="Relative error of a sum by halves.")
    kahan_sum_error: float | None = Field(None, description="Relative error of Kahan's compensated sum.")
    neumaier_sum_error: float | None = Field(None, description="Relative error of Neumaier's compensated sum.")
    nearest_away_sum_error: float | None = Field(None, description="Naive, ties rounded away from zero.")
    toward_zero_sum_error: float | None = Field(None, description="Naive, each sum cut off.")
    up_sum_error: float | None = Field(None, description="Naive, each sum rounded towards +∞.")
    down_sum_error: float | None = Field(None, description="Naive, each sum rounded towards −∞.")
    not_associative_percent: Percent | None = Field(None, description="Triples with (a + b) + c ≠ a + (b + c).")
    tenths_from_left: float | None = Field(None, description="(0.1 + 0.2) + 0.3, rounded after each step.")
    tenths_from_right: float | None = Field(None, description="0.1 + (0.2 + 0.3), rounded after each step.")
    round_trip_digits: int | None = Field(None, description="Decimal digits from which each number is read back.")
    sigmoid_fails_at: int | None = Field(None, description="First whole x at which exp(x) / (1 + exp(x)) is NaN.")
    stable_sigmoid_error: float | None = Field(None, description="Of the form that never fails, the greatest.")
    relative_tolerance: float | None = Field(None, description="The least that accepts x · 1.5 / 1.5 for every x.")
    absolute_refuses_percent: Percent | None = Field(None, description="Of these, refused by a tolerance of 1e-8.")
    absolute_accepts_percent: Percent | None = Field(
        None, description="Of results eight units in the last place off, accepted by a tolerance of 1e-8."
    )
    gradient_difference_error: float | None = Field(
        None, description="Of a sigmoid's central difference with gradcheck's step, 1e-6."
    )
    gradcheck_passes: bool | None = Field(None, description="For a sigmoid; empty if torch has no such arithmetic.")
    special_values: str | None = Field(None, description="JSON: value → bits of sign, exponent, mantissa.")
    nan_patterns: int | None = Field(None, description="Patterns of bits that are no number.")
    squares_difference_error: float | None = Field(None, description="a·a − b·b for a, b near 1: cancellation.")
    factored_difference_error: float | None = Field(None, description="(a − b)·(a + b) for the same.")
    dot_error_own: float | None = Field(None, description="Accumulated in the format itself.")
    dot_error_fp16: float | None = Field(None, description="Accumulated in fp16.")
    dot_error_fp32: float | None = Field(None, description="Accumulated in fp32.")


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
