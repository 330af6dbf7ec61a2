"""Bits of special values against torch's own decoding, digits of round trips, and where a plain sigmoid fails."""

import math
import struct

import pytest
import torch

from mfulab.measurements.number_formats import rounding, special_values
from mfulab.measurements.number_formats.rounding import ROUNDED

PACKED = {"fp64": (">Q", ">d"), "fp32": (">I", ">f"), "fp16": (">H", ">e")}


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
    for label, bits in special_values.special_values(form).items():
        (decoded,) = struct.unpack(real, struct.pack(whole, int(bits.replace(" ", ""), 2)))
        value = value_of(form, bits)
        assert (math.isnan(value) and math.isnan(decoded)) or (value, math.copysign(1, value)) == (
            decoded,
            math.copysign(1, decoded),
        ), label
    known = special_values.special_values(form)
    assert value_of(form, known["largest"]) == rounding.largest(form)
    assert value_of(form, known["smallest_subnormal"]) == rounding.smallest_subnormal(form)


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)]
)
def test_patterns_that_are_no_number_are_counted(name, dtype):
    width = torch.finfo(dtype).bits
    patterns = torch.arange(2**width, dtype=torch.int32).to(torch.int16 if width == 16 else torch.uint8).view(dtype)
    assert int(patterns.to(torch.float64).isnan().sum()) == special_values.nan_patterns(ROUNDED[name])
    bits = f"{0x35 if width == 8 else 0x3501:0{width}b}"
    form = ROUNDED[name]
    split = 1 + rounding.exponent_bits(form)
    value = value_of(form, f"{bits[0]} {bits[1:split]} {bits[split:]}")
    assert value == float(patterns[int(bits, 2)].to(torch.float64))


@pytest.mark.parametrize(("name", "digits"), [("fp64", 17), ("fp32", 9), ("fp16", 5), ("bf16", 4)])
def test_digits_of_a_round_trip(name, digits):
    form = ROUNDED[name]
    assert special_values.round_trip_digits(form, special_values.across_binades(form, 2000, 0)) == digits


@pytest.mark.parametrize(("name", "at"), [("fp64", 710), ("fp32", 89), ("fp16", 12), ("bf16", 89), ("fp8", None)])
def test_a_plain_sigmoid_fails_where_exp_leaves_the_range(name, at):
    assert special_values.sigmoid_fails_at(ROUNDED[name]) == at
