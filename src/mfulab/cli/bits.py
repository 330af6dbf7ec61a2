"""`mfulab bits`: decodes a bit pattern of a number format, or encodes a value."""

import math
import re
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING

import click
from rich.cells import set_cell_size

from mfulab.cli.options import AS_JSON, LANGUAGE, Choice, command
from mfulab.core.answer import answered
from mfulab.core.errors import ConfigurationError
from mfulab.core.formats import FORMATS, Decoded, Format, decode, encode
from mfulab.core.printing import say, say_json
from mfulab.core.said import Numbers, Said, of_source, said_by

if TYPE_CHECKING:
    from mfulab.core.language import Texts

PATTERN = re.compile(r"0[xXbB][0-9a-fA-F_]+")
VALUE = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d{1,4})?")
WHOLE = re.compile(r"[+-]?\d+")
WIDTH = 10  # columns of a line's name
LONGEST = 400  # characters: the longest finite value of fp64 has 309 digits


@command("bits", "bits 0x7fc00000 --format fp32")
@click.argument("pattern")
@click.option(
    "--format",
    "name",
    type=Choice(["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]),
    default="fp32",
    help="Number format of PATTERN; tf32 has 19 bits here, fp8 is E4M3.",
)
@AS_JSON
@LANGUAGE
def show(pattern: str, name: str, as_json: bool, language: str) -> None:
    """Prints the fields, value and kind of a pattern (0x7fc00000, 0b…), or of the pattern of a
    value (0.1, 1.0, 1e-3). Raises ConfigurationError for any other text."""
    form = FORMATS[name]
    if len(pattern) > LONGEST:
        too_long = Said("pattern_too_long", most=LONGEST)
        raise ConfigurationError(of_source(f"pattern={pattern[:12]}…", too_long))
    exact = None
    if VALUE.fullmatch(pattern):
        exact = Fraction(pattern)
        bits = encode(exact, form)
    else:
        bits = _parse_bits(pattern)
    try:
        number = decode(bits, form)
    except ValueError as error:
        raise ConfigurationError(of_source(f"pattern={pattern}", said_by(error))) from None
    off = None
    if exact is not None and math.isfinite(number.value):
        off = float(Fraction(number.value) - exact)
    if as_json:
        fields = {"format": name, "pattern": f"{bits:#x}", **asdict(number)}
        del fields["value"]  # the answer has it, without infinity and NaN, which JSON lacks
        answer = answered(number.value, "", "exact")
        say_json(answer.line(fields if exact is None else fields | {"off": off}))
        return
    from mfulab.core.language import Texts

    text = Texts(language, "bits")
    lines = _facts(bits, number, form, text)
    if off is not None:
        lines[text("error")] = repr(off) if off else text("exact")
    for name, fact in lines.items():
        say(f"{set_cell_size(name, WIDTH)}{fact}")


def _parse_bits(pattern: str) -> int:
    """Parses a bit pattern. Raises ConfigurationError if it is not one, or could be a value too."""
    if WHOLE.fullmatch(pattern):
        either: Numbers = {"pattern": pattern, "bits": f"{int(pattern):#x}"}
        raise ConfigurationError(Said("value_or_bits", either))
    if not PATTERN.fullmatch(pattern):
        raise ConfigurationError(of_source(f"pattern={pattern}", Said("give_bits_or_value")))
    try:
        return int(pattern, 0)
    except ValueError:
        raise ConfigurationError(of_source(f"pattern={pattern}", Said("no_bits"))) from None


def _facts(bits: int, number: Decoded, form: Format, text: "Texts") -> dict[str, object]:
    """Lines to print, by name: the bits split into their three fields, and each field's value."""
    digits = f"{bits:0{form.bits}b}"
    fraction_begins = 1 + form.exponent_bits
    bias = (1 << form.exponent_bits - 1) - 1
    steps = 1 << form.bits - fraction_begins
    return {
        form.name: f"{digits[0]} {digits[1:fraction_begins]} {digits[fraction_begins:]}",
        text("pattern"): f"{bits:#x}",
        text("sign"): number.sign,
        text("exponent"): text("exponent_of", exponent=number.exponent, bias=bias),
        text("fraction"): text("fraction_of", fraction=number.fraction, steps=steps),
        text("value"): repr(number.value),
        text("kind"): text.name("number_kind", number.kind),
        text("ulp"): text("no_ulp") if number.ulp is None else repr(number.ulp),
    }
