"""Parameters of number formats, found by doing arithmetic in them, and rounding errors of sums and
differences. Each operation is computed in float64 and then rounded to the format. This equals
rounding once, as float64 has more than twice the format's digits (Figueroa, "When is double
rounding innocuous?", 1995). float64 itself uses the hardware's arithmetic."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce

import torch

from mfulab.core import formats

TRIALS = 32  # independent sequences; each error is their median


@dataclass(frozen=True)
class NumberFormat:
    """A binary floating-point format. `round` maps a float64 tensor to the nearest values of the
    format, in float64."""

    name: str
    bits: int  # bits that carry information; tf32 is stored in 32
    round: Callable[[torch.Tensor], torch.Tensor]

    def of(self, value: float) -> float:
        """Value of the format nearest to `value`."""
        return float(self.round(torch.tensor(value, dtype=torch.float64)))


def _through(dtype: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: values.to(getattr(torch, dtype)).to(torch.float64)


def _to_tf32(values: torch.Tensor) -> torch.Tensor:
    """Rounds to a significand of 10 explicit bits, to nearest with ties to even."""
    in_float32 = values.to(torch.float32)
    bits = in_float32.contiguous().view(torch.int32)
    rounded_bits = bits + 0xFFF + ((bits >> 13) & 1) & ~0x1FFF
    rounded = torch.where(values.isfinite(), rounded_bits.view(torch.float32), in_float32)
    return rounded.to(torch.float64)


ROUNDED: dict[str, NumberFormat] = {}
for _form in formats.FORMATS.values():
    if _form.is_floating:
        _round = _to_tf32 if _form.name == "tf32" else _through(_form.operand)
        ROUNDED[_form.name] = NumberFormat(_form.name, _form.bits, _round)


@cache
def epsilon(form: NumberFormat) -> float:
    """Distance from 1 to the next larger number."""
    step = 1.0
    while 1.0 < form.of(1.0 + step / 2) == 1.0 + step / 2:
        step /= 2
    return step


@cache
def smallest_subnormal(form: NumberFormat) -> float:
    """Smallest positive number: half of it rounds to zero."""
    value = 1.0
    while form.of(value / 2) == value / 2 != 0:
        value /= 2
    return value


@cache
def smallest_normal(form: NumberFormat) -> float:
    """Smallest positive number of full precision: the smallest power of two from which the next
    number is a relative `epsilon` away."""
    value = 1.0
    relative = epsilon(form)
    while form.of(value / 2 * (1 + relative)) == value / 2 * (1 + relative) > value / 2 > 0:
        value /= 2
    return value


@cache
def largest(form: NumberFormat) -> float:
    """Largest finite number: the largest power of two, plus each smaller bit that still fits."""
    power = 1.0
    while power * 2 < math.inf and form.of(power * 2) == power * 2:
        power *= 2
    total = power
    bit = power / 2
    while bit >= power * epsilon(form):
        if math.isfinite(form.of(total + bit)) and form.of(total + bit) == total + bit:
            total += bit
        bit /= 2
    return total


def mantissa_bits(form: NumberFormat) -> int:
    """Explicit bits of the significand."""
    return round(-math.log2(epsilon(form)))


def exponent_bits(form: NumberFormat) -> int:
    """Bits other than the sign and the significand."""
    return form.bits - 1 - mantissa_bits(form)


def bias(form: NumberFormat) -> int:
    """Bias of the stored exponent, which is 1 for the smallest normal number."""
    return 1 - round(math.log2(smallest_normal(form)))


def terms(form: NumberFormat, length: int, seed: int) -> torch.Tensor:
    """Draws [TRIALS, length] numbers of the format, uniform in (0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return form.round(torch.rand(TRIALS, length, generator=generator, dtype=torch.float64))


def naive_sum(form: NumberFormat, values: torch.Tensor) -> torch.Tensor:
    """Adds one value after the other and rounds each time; values[trials, length] → [trials]."""
    return reduce(lambda total, column: form.round(total + column), values.T)


def pairwise_sum(form: NumberFormat, values: torch.Tensor) -> torch.Tensor:
    """Adds neighbours, then neighbours of the sums; values[trials, length] → [trials]. The error
    grows with the logarithm of the length."""
    while values.shape[1] > 1:
        if values.shape[1] % 2:
            values = torch.nn.functional.pad(values, (0, 1))
        values = form.round(values[:, ::2] + values[:, 1::2])
    return values[:, 0]


def kahan_sum(form: NumberFormat, values: torch.Tensor) -> torch.Tensor:
    """Adds one value after the other, and carries what each addition lost into the next (Kahan,
    1965); values[trials, length] → [trials]."""
    total = torch.zeros(len(values), dtype=torch.float64)
    lost = torch.zeros_like(total)
    for column in values.T:
        corrected = form.round(column - lost)
        raised = form.round(total + corrected)
        lost = form.round(form.round(raised - total) - corrected)
        total = raised
    return total


def relative_error(computed: torch.Tensor, exact: torch.Tensor) -> float:
    """Median over the trials of |computed − exact| / |exact|. NaN if a sum overflowed the
    format."""
    return float(((computed - exact).abs() / exact.abs()).median())


def exact_sum(values: torch.Tensor) -> torch.Tensor:
    """Correctly rounded sum of each row."""
    return torch.tensor([math.fsum(row) for row in values.tolist()], dtype=torch.float64)


def difference_of_squares(form: NumberFormat, seed: int) -> tuple[float, float]:
    """Median relative errors of a·a − b·b and of (a − b)·(a + b) for a and b within √epsilon above
    1: cancellation."""
    near = form.round(1 + math.sqrt(epsilon(form)) * terms(form, 2, seed))
    a, b = near[near[:, 0] != near[:, 1]].T
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    differences = [float(Fraction(x) ** 2 - Fraction(y) ** 2) for x, y in pairs]
    exact = torch.tensor(differences, dtype=torch.float64)
    squared = form.round(form.round(a * a) - form.round(b * b))
    factored = form.round(form.round(a - b) * form.round(a + b))
    return relative_error(squared, exact), relative_error(factored, exact)
