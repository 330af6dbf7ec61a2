"""`mfulab bits`: bit patterns of each format against torch's own reading of them, and what is no
pattern."""

import json
import math
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfulab.__main__ import main
from mfulab.cli import bits
from mfulab.core.formats import FORMATS, decode, encode
from mfulab.measurements.number_formats import rounding

INTEGERS = {64: torch.int64, 32: torch.int32, 16: torch.int16, 8: torch.uint8}
FLOATING = [name for name, form in FORMATS.items() if form.is_floating]


def read_by_torch(pattern: int, name: str) -> torch.Tensor:
    """The number that torch sees in the pattern; TF32's 19 bits are the upper ones of a float32."""
    form = FORMATS[name]
    bits = 8 * form.bytes
    word = pattern << (bits - form.bits)
    signed = word - (1 << bits) if bits > 8 and word >> (bits - 1) else word
    return torch.tensor([signed], dtype=INTEGERS[bits]).view(getattr(torch, form.operand))


@pytest.mark.parametrize("name", FLOATING)
@given(st.data())
def test_a_pattern_is_what_torch_reads(name, data):
    form = FORMATS[name]
    pattern = data.draw(st.integers(0, (1 << form.bits) - 1))
    number, theirs = decode(pattern, form), float(read_by_torch(pattern, name).double())
    assert repr(number.value) == repr(theirs) or (math.isnan(number.value) and math.isnan(theirs))
    assert (
        number.sign << form.bits - 1
        | number.exponent << form.bits - 1 - form.exponent_bits
        | number.fraction
        == pattern
    )
    assert (number.ulp is None) is not math.isfinite(number.value)


@pytest.mark.parametrize("name", FLOATING)
def test_special_values_are_those_that_the_format_is_probed_for(name):
    form, probed = FORMATS[name], rounding.ROUNDED[name]
    assert form.exponent_bits == rounding.exponent_bits(probed)
    is_fp8 = name == "fp8"  # one NaN and no infinity: OCP, 2023, section 5
    mantissa = rounding.mantissa_bits(probed)
    top = (1 << rounding.exponent_bits(probed)) - 1 << mantissa  # all ones of the exponent
    values = {
        "-0": 1 << probed.bits - 1,
        "smallest_subnormal": 1,
        "smallest_normal": 1 << mantissa,
        "1": rounding.bias(probed) << mantissa,
        "largest": top | (1 << mantissa) - 2 if is_fp8 else top - 1,
        "quiet_nan": top | (1 << mantissa) - 1 if is_fp8 else top | 1 << mantissa - 1,
    }
    if not is_fp8:
        values |= {"signalling_nan": top | 1, "-inf": 1 << probed.bits - 1 | top}
    assert decode(values["1"], form).ulp == rounding.epsilon(probed)
    assert decode(values["largest"], form).value == rounding.largest(probed)
    assert decode(values["smallest_normal"], form).value == rounding.smallest_normal(probed)
    smallest = decode(values["smallest_subnormal"], form)
    found = (smallest.value, smallest.ulp, smallest.kind)
    assert found == (rounding.smallest_subnormal(probed),) * 2 + ("subnormal",)
    assert decode(values["-0"], form).kind == "zero"
    assert math.copysign(1, decode(values["-0"], form).value) == -1
    kinds = {
        key: decode(values[key], form).kind
        for key in values.keys() & {"quiet_nan", "signalling_nan", "-inf"}
    }
    ieee = {"quiet_nan": "quiet NaN", "signalling_nan": "signalling NaN", "-inf": "infinity"}
    assert kinds == ({"quiet_nan": "NaN"} if name == "fp8" else ieee)


def test_a_pattern_is_printed_with_its_parts(capsys):
    assert main(["bits", "0x7fc00000", "--format", "fp32"]) == 0
    printed = capsys.readouterr().out
    for line in (
        "0 11111111 10000000000000000000000",
        "exponent  255, bias 127",
        "kind      quiet NaN",
        "ULP       none",
    ):
        assert line in printed
    assert main(["bits", "0xc0490fdb", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = (told["sign"], told["exponent"], told["answer"]["value"], told["ulp"])
    assert found == (1, 128, -3.1415927410125732, 2.0**-22)
    assert main(["bits", "0xff800000", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer["value"] is None
    assert answer["reason"] == {"no_finite_number": {"value": "-inf"}}


@pytest.mark.parametrize("pattern", ["0x7fc00000", "0x1", "0.1"])
def test_the_parts_are_named_in_the_terminals_language(pattern, capsys, monkeypatch):
    printed = {}
    for language in ("en_US.UTF-8", "ko_KR.UTF-8"):
        monkeypatch.setenv("LC_ALL", language)
        assert main(["bits", pattern]) == 0
        printed[language] = capsys.readouterr().out.splitlines()
    english, korean = printed.values()
    assert len(korean) == len(english)
    names = [line.split()[0] for line in korean]
    assert [name for name in names if name.isascii()] == ["fp32", "ULP"]
    kinds = [lines[6].split(maxsplit=1)[1] for lines in (english, korean)]
    assert kinds[0] != kinds[1]
    assert re.search("[가-힣]", kinds[1])


@pytest.mark.parametrize("name", FLOATING)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1000, 1000, width=32))
def test_a_value_has_the_pattern_that_torch_gives_it(name, value):
    form = FORMATS[name]
    pattern = encode(Fraction(value), form)
    if name == "tf32":  # torch has no such type: no other pattern is nearer
        others = [pattern + step for step in (-1, 1) if 0 <= pattern + step < 1 << form.bits]
        distance = (
            abs(Fraction(decode(pattern, form).value) - Fraction(value))
            if (math.isfinite(decode(pattern, form).value))
            else None
        )
        for other in others:
            near = decode(other, form).value
            assert (
                distance is None
                or not math.isfinite(near)
                or distance <= abs(Fraction(near) - Fraction(value))
            )
        return
    stored = torch.tensor(value, dtype=torch.float64)
    theirs = float(stored.to(getattr(torch, form.operand)).double())
    ours = decode(pattern, form).value
    # torch rounds to float32 on the way to fewer bits, which may differ by a unit.
    way = float(stored.float().double())
    if form.bits < 32 and way != value:
        ours = decode(encode(Fraction(way), form), form).value if math.isfinite(way) else theirs
    assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))


@pytest.mark.parametrize(
    ("value", "name", "pattern"),
    [
        ("0.1", "fp32", "0x3dcccccd"),
        ("1.0", "bf16", "0x3f80"),
        ("-2e0", "fp16", "0xc000"),
        ("1e-46", "fp32", "0x0"),
        ("1e39", "fp32", "0x7f800000"),
        ("449.0", "fp8", "0x7e"),
        ("1e9", "fp8", "0x7e"),
        ("0.1", "fp64", "0x3fb999999999999a"),
    ],
)
def test_a_value_is_encoded(capsys, value, name, pattern):
    assert main(["bits", "--format", name, "--json", "--", value]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pattern"] == pattern
    assert main(["bits", "--format", name, pattern, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["answer"] == told["answer"]
    if told["off"] is not None:
        assert told["off"] == float(Fraction(told["answer"]["value"]) - Fraction(value))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0x1ffffffff"], "pattern=0x1ffffffff: 0x1ffffffff: not a pattern of 32 bits"),
        (["--", "-1"], "Write -1.0 for the value, -0x1 for the bits"),
        (["1"], "pattern=1: a value or bits? Write 1.0 for the value, 0x1 for the bits"),
        (["0b12"], "pattern=0b12: not a binary or hexadecimal number"),
        (["0x80000", "--format", "tf32"], "not a pattern of 19 bits"),
        (["one"], "pattern=one: give bits as 0x3f800000 or 0b1111, or a value as 0.1"),
        (["1.0.0"], "pattern=1.0.0: give bits"),
        (["1", "--format", "int8"], "'int8' is not one of"),
    ],
)
def test_what_is_no_pattern_is_one_message(capsys, words, message):
    assert main(["bits", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_formats_to_choose_are_all_that_have_an_exponent():
    formats = next(param for param in bits.show.params if param.name == "name")
    assert list(formats.type.choices) == FLOATING
