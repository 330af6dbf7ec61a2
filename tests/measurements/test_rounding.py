import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core.errors import UnsupportedError
from mfulab.measurements.number_formats import NumberFormatsConfig, rounding
from mfulab.measurements.number_formats.measure import measure
from mfulab.measurements.number_formats.rounding import ROUNDED

DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}


@pytest.mark.parametrize("name", DTYPES)
def test_probing_finds_what_the_format_says(name):
    info, form = torch.finfo(getattr(torch, DTYPES[name])), ROUNDED[name]
    assert form.bits == info.bits
    assert rounding.epsilon(form) == info.eps
    assert rounding.largest(form) == info.max
    assert rounding.smallest_normal(form) == info.smallest_normal


# IEEE 754-2008, table 3.5; bfloat16 and TF32 as NVIDIA describes them; OCP 8-bit floating point,
# 2023.
@pytest.mark.parametrize(
    ("name", "exponent", "mantissa", "bias", "subnormal"),
    [
        ("fp64", 11, 52, 1023, 2.0**-1074),
        ("fp32", 8, 23, 127, 2.0**-149),
        ("tf32", 8, 10, 127, 2.0**-136),
        ("fp16", 5, 10, 15, 2.0**-24),
        ("bf16", 8, 7, 127, 2.0**-133),
        ("fp8", 4, 3, 7, 2.0**-9),
    ],
)
def test_the_parts_of_a_format(name, exponent, mantissa, bias, subnormal):
    form = ROUNDED[name]
    assert rounding.exponent_bits(form) == exponent
    assert rounding.mantissa_bits(form) == mantissa
    assert rounding.bias(form) == bias
    assert rounding.smallest_subnormal(form) == subnormal


def test_the_seminar_s_numbers():
    assert struct.pack(">f", 1.0).hex() == "3f800000"
    assert rounding.epsilon(ROUNDED["fp32"]) == 2.0**-23
    assert rounding.epsilon(ROUNDED["fp64"]) == 2.0**-52
    assert 0.1 + 0.2 != 0.3


@given(st.floats(-1e4, 1e4), st.sampled_from(sorted(ROUNDED)))
def test_rounding_is_to_the_nearest_and_stays(value, name):
    form = ROUNDED[name]
    if abs(value) > rounding.largest(form):
        return
    rounded = form.of(value)
    assert form.of(rounded) == rounded
    spacing = max(abs(value) * rounding.epsilon(form), rounding.smallest_subnormal(form))
    assert abs(rounded - value) <= spacing / 2


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_tf32_of_a_float32_is_a_multiple_of_its_last_bit(value):
    rounded = rounding.ROUNDED["tf32"].of(value)
    if math.isfinite(rounded):
        assert struct.unpack(">I", struct.pack(">f", rounded))[0] % (1 << 13) == 0


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_kahan_beats_pairwise_beats_naive(name):
    form = ROUNDED[name]
    values = rounding.terms(form, 2048, seed=1)
    exact = rounding.exact_sum(values)
    naive, pairwise, kahan = (
        rounding.relative_error(total(form, values), exact)
        for total in (rounding.naive_sum, rounding.pairwise_sum, rounding.kahan_sum)
    )
    assert kahan <= pairwise < naive
    assert kahan <= 2 * rounding.epsilon(form)


def test_a_native_float32_sum_is_the_emulated_one():
    values = rounding.terms(ROUNDED["fp32"], 300, seed=2)
    native = torch.zeros(len(values))
    for column in values.float().T:
        native = native + column
    assert torch.equal(native.double(), rounding.naive_sum(ROUNDED["fp32"], values))


@pytest.mark.parametrize("name", ["fp64", "fp32", "tf32", "fp16", "bf16"])
def test_cancellation_and_its_cure(name):
    squared, factored = rounding.difference_of_squares(ROUNDED[name], seed=3)
    assert factored <= 2 * rounding.epsilon(ROUNDED[name])
    assert squared > 3 * factored


@pytest.mark.parametrize("name", [*DTYPES, "tf32"])
def test_the_step_gives_a_full_row(tmp_path, name):
    precision = {"name": name, "dtype": DTYPES.get(name, "float32"), "tf32": name == "tf32"}
    row = measure(NumberFormatsConfig(precision=precision, sum_length=256), tmp_path).row
    assert row.status == "ok"
    assert row.precision == name
    assert row.bits == 1 + row.exponent_bits + row.mantissa_bits
    assert row.sum_length == 256
    assert row.kahan_sum_error is not None


def test_an_integer_format_is_unsupported(tmp_path):
    with pytest.raises(UnsupportedError, match="no floating-point format"):
        measure(NumberFormatsConfig(precision={"name": "int8", "dtype": "int8"}), tmp_path)
