"""All rounding modes against exact fractions, and bits against torch's own decoding."""

import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfulab.measurements.number_formats import rounding, rounding_modes
from mfulab.measurements.number_formats.rounding import ROUNDED

NARROW = ("fp32", "fp16", "bf16", "tf32")
PACKED = {"fp64": (">Q", ">d"), "fp32": (">I", ">f"), "fp16": (">H", ">e")}


def exactly(form, exact, mode):
    """The rounded value by its definition, from all candidates around it."""
    near = form.of(float(exact))
    step = max(abs(near) * rounding.epsilon(form), rounding.smallest_subnormal(form))
    around = {Fraction(form.of(near + move * step / 2)) for move in range(-6, 7)}
    above, below = (
        min(value for value in around if value >= exact),
        max(value for value in around if value <= exact),
    )
    if mode in ("up", "down"):
        return above if mode == "up" else below
    zero, away = sorted((above, below), key=abs)
    if mode == "toward_zero":
        return zero
    if mode == "nearest_away":
        return away if abs(away - exact) <= abs(exact - zero) else zero
    return (
        Fraction(near)
        if above - exact == exact - below
        else min((zero, away), key=lambda one: abs(one - exact))
    )


@given(
    st.sampled_from(NARROW),
    st.sampled_from(rounding_modes.MODES),
    *[st.integers(-(2**30), 2**30)] * 2,
    *[st.integers(-24, 6)] * 2,
)
def test_every_mode_rounds_as_it_is_defined(name, mode, a, b, low, high):
    form = ROUNDED[name]
    a, b = form.of(math.ldexp(a, low - 24)), form.of(math.ldexp(b, high - 24))
    total, lost = rounding_modes.two_sum(
        *(torch.tensor([each], dtype=torch.float64) for each in (a, b))
    )
    exact = Fraction(a) + Fraction(b)
    assert Fraction(float(total)) + Fraction(float(lost)) == exact
    rounded = rounding_modes.rounded(form, total, lost, mode)
    assert Fraction(float(rounded)) == exactly(form, exact, mode)


def test_float64_itself_is_rounded_by_what_its_sum_lost():
    one, tiny = torch.ones(1, dtype=torch.float64), torch.tensor([2.0**-60], dtype=torch.float64)
    found = {}
    for sign in (1, -1):
        both = rounding_modes.two_sum(one, sign * tiny)
        found[sign] = {
            mode: float(rounding_modes.rounded(ROUNDED["fp64"], *both, mode))
            for mode in rounding_modes.MODES
        }
    under = 1 - 2.0**-53
    assert found[1] == {
        "nearest_even": 1,
        "nearest_away": 1,
        "toward_zero": 1,
        "down": 1,
        "up": 1 + 2.0**-52,
    }
    assert found[-1] == {
        "nearest_even": 1,
        "nearest_away": 1,
        "toward_zero": under,
        "down": under,
        "up": 1,
    }


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_directed_sums_lie_on_their_sides_and_compensated_ones_nearest(name):
    form = ROUNDED[name]
    values = rounding.terms(form, 200, 0)
    exact = rounding.exact_sum(values)
    found = rounding_modes.sums(form, values)
    down, up = found["down"], found["up"]
    assert bool((down <= exact).all())
    assert bool((exact <= up).all())
    assert torch.equal(found["nearest_even"], rounding.naive_sum(form, values))
    neumaier = rounding.relative_error(rounding_modes.neumaier_sum(form, values), exact)
    assert neumaier <= rounding.epsilon(form) / 2


def test_neumaier_keeps_what_kahan_loses():
    values = torch.tensor([[1.0, 1e100, 1.0, -1e100]], dtype=torch.float64)
    assert rounding_modes.neumaier_sum(ROUNDED["fp64"], values).item() == 2
    assert rounding.kahan_sum(ROUNDED["fp64"], values).item() == 0


def value_of(form, bits):
    """The value of `sign exponent mantissa`, by the definition of the format."""
    sign, exponent, mantissa = bits.split()
    stored, fraction = int(exponent, 2), int(mantissa, 2)
    width, factor = len(mantissa), -1.0 if sign == "1" else 1.0
    if form.name == "fp8":
        if stored == 2 ** len(exponent) - 1 and fraction == 2**width - 1:
            return math.nan
    elif stored == 2 ** len(exponent) - 1:
        return factor * math.inf if fraction == 0 else math.nan
    if stored == 0:
        return factor * math.ldexp(fraction, 1 - rounding.bias(form) - width)
    return factor * math.ldexp(2**width + fraction, stored - rounding.bias(form) - width)


@pytest.mark.parametrize("name", PACKED)
def test_special_values_are_what_their_bits_say(name):
    whole, real = PACKED[name]
    form = ROUNDED[name]
    for label, bits in rounding_modes.special_values(form).items():
        (decoded,) = struct.unpack(real, struct.pack(whole, int(bits.replace(" ", ""), 2)))
        value = value_of(form, bits)
        assert (math.isnan(value) and math.isnan(decoded)) or (value, math.copysign(1, value)) == (
            decoded,
            math.copysign(1, decoded),
        ), label
    known = rounding_modes.special_values(form)
    assert value_of(form, known["largest"]) == rounding.largest(form)
    assert value_of(form, known["smallest_subnormal"]) == rounding.smallest_subnormal(form)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)],
)
def test_patterns_that_are_no_number_are_counted(name, dtype):
    width = torch.finfo(dtype).bits
    patterns = (
        torch.arange(2**width, dtype=torch.int32)
        .to(torch.int16 if width == 16 else torch.uint8)
        .view(dtype)
    )
    assert int(patterns.to(torch.float64).isnan().sum()) == rounding_modes.nan_patterns(
        ROUNDED[name]
    )
    bits = f"{0x35 if width == 8 else 0x3501:0{width}b}"
    form = ROUNDED[name]
    split = 1 + rounding.exponent_bits(form)
    value = value_of(form, f"{bits[0]} {bits[1:split]} {bits[split:]}")
    assert value == float(patterns[int(bits, 2)].to(torch.float64))


@pytest.mark.parametrize(("name", "digits"), [("fp64", 17), ("fp32", 9), ("fp16", 5), ("bf16", 4)])
def test_digits_of_a_round_trip(name, digits):
    form = ROUNDED[name]
    assert (
        rounding_modes.round_trip_digits(form, rounding_modes.across_binades(form, 2000, 0))
        == digits
    )


@pytest.mark.parametrize(
    ("name", "at"), [("fp64", 710), ("fp32", 89), ("fp16", 12), ("bf16", 89), ("fp8", None)]
)
def test_a_plain_sigmoid_fails_and_the_stable_one_does_not(name, at):
    form = ROUNDED[name]
    assert rounding_modes.sigmoid_fails_at(form) == at
    far = torch.tensor([-1000.0, -1.0, 0.0, 1.0, 1000.0], dtype=torch.float64)
    stable = rounding_modes.sigmoid(form, far, stable=True)
    assert stable[2] == 0.5
    assert (stable[0], stable[4]) == (0, 1)
    assert torch.allclose(stable, torch.sigmoid(far), atol=rounding.epsilon(form))


def test_sums_of_whole_numbers_are_associative_and_of_fractions_are_not():
    form = ROUNDED["fp16"]
    assert (
        rounding_modes.not_associative_percent(
            form, torch.arange(32.0, dtype=torch.float64).view(2, 16)
        )
        == 0
    )
    assert rounding_modes.not_associative_percent(form, rounding.terms(form, 300, 1)) > 5


def test_three_tenths_depend_on_their_grouping_in_fp64_as_python_has_it():
    left, right = rounding_modes.tenths(rounding.ROUNDED["fp64"])
    assert (left, right) == ((0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3))
    assert left != right
    left, right = rounding_modes.tenths(rounding.ROUNDED["bf16"])
    assert left == right == float(torch.tensor(0.1, dtype=torch.bfloat16) + 0.2 + 0.3)
