"""Row of a number format."""

from typing import ClassVar

from pydantic import Field

from mfulab.core.configs import SEED, StepConfig
from mfulab.core.groups import PrecisionConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row, column


class NumberFormatsConfig(StepConfig):
    """One number format: its parts, and what rounding does in it."""

    axes: ClassVar[tuple[str, ...]] = ("precision",)
    on_device: ClassVar[bool] = False
    precision: PrecisionConfig
    sum_length: int = Field(4096, ge=2, le=1 << 24, description="Numbers a sum; fewer where it would leave the range.")
    seed: int = SEED


class NumberFormatsRow(Row):
    """Errors are relative, medians over independent sequences; empty if a sum left the format's range."""

    precision: str = Field("", description="Name of its config: the format that was asked for.")
    bits: int | None = column("That carry information; tf32 is stored in 32.")
    exponent_bits: int | None = column("Bits of the exponent.")
    mantissa_bits: int | None = column("Explicit bits of the significand.")
    bias: int | None = column("What is taken from the stored exponent.")
    epsilon: float | None = column("Distance from 1 to the next larger number.")
    largest: float | None = column("Largest finite number.")
    smallest_normal: float | None = column("Smallest positive normal number.")
    smallest_subnormal: float | None = column("Smallest positive number.")
    tenths_add_up: bool | None = column("True if 0.1 + 0.2 == 0.3.")
    last_counted: float | None = column("Where counting by ones stops.")
    sum_length: int | None = column("Numbers in (0, 1) a sum and a dot product.")
    naive_sum_error: float | None = column("Relative error of adding one number after the other.")
    ascending_sum_error: float | None = column("Naive, smallest number first.")
    descending_sum_error: float | None = column("Naive, largest number first.")
    pairwise_sum_error: float | None = column("The same by halves.")
    kahan_sum_error: float | None = column("The same with Kahan's correction.")
    neumaier_sum_error: float | None = column("The same with Neumaier's.")
    nearest_away_sum_error: float | None = column("Naive, ties rounded away from zero.")
    toward_zero_sum_error: float | None = column("Naive, each sum cut off.")
    up_sum_error: float | None = column("Naive, each sum rounded towards +∞.")
    down_sum_error: float | None = column("Naive, each sum rounded towards −∞.")
    not_associative_percent: Percent | None = column("Triples with (a + b) + c ≠ a + (b + c).")
    tenths_from_left: float | None = column("(0.1 + 0.2) + 0.3, rounded after each step.")
    tenths_from_right: float | None = column("0.1 + (0.2 + 0.3), rounded after each step.")
    round_trip_digits: int | None = column("Decimal digits from which each number is read back.")
    sigmoid_fails_at: int | None = column("First whole x at which exp(x) / (1 + exp(x)) is NaN.")
    stable_sigmoid_error: float | None = column("Of the form that never fails, the greatest.")
    relative_tolerance: float | None = column("The least that accepts x · 1.5 / 1.5 for every x.")
    absolute_refuses_percent: Percent | None = column("Of these, refused by a tolerance of 1e-8.")
    absolute_accepts_percent: Percent | None = column("Of results eight last places off, accepted by 1e-8.")
    gradient_difference_error: float | None = column("Of a sigmoid's central difference with gradcheck's step, 1e-6.")
    gradcheck_passes: bool | None = column("For a sigmoid; empty if torch has no such arithmetic.")
    special_values: str | None = column("JSON: value → bits of sign, exponent, mantissa.")
    nan_patterns: int | None = column("Patterns of bits that are no number.")
    squares_difference_error: float | None = column("a·a − b·b for a, b near 1: cancellation.")
    factored_difference_error: float | None = column("(a − b)·(a + b) for the same.")
    dot_error_own: float | None = column("Accumulated in the format itself.")
    dot_error_fp16: float | None = column("Accumulated in fp16.")
    dot_error_fp32: float | None = column("Accumulated in fp32.")


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
