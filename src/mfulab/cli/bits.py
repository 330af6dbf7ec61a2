"""`mfulab bits`: what a bit pattern is in a number format, and which pattern a value has."""

import math
import re
from dataclasses import asdict
from fractions import Fraction

import click

from mfulab.cli.options import AS_JSON, Choice, command
from mfulab.core.answer import answered
from mfulab.core.errors import ConfigurationError
from mfulab.core.formats import FORMATS, Decoded, Format, decode, encode
from mfulab.core.printing import say, say_json
from mfulab.core.said import Numbers, Said, of_source, said_by

PATTERN = re.compile(r"0[xXbB][0-9a-fA-F_]+")
VALUE = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d{1,4})?")
WHOLE = re.compile(r"[+-]?\d+")
LONGEST = 400  # letters: the longest finite value of fp64 has 309 digits


@command("bits", "bits 0x7fc00000 --format fp32")
@click.argument("pattern")
@click.option(
    "--format",
    "name",
    type=Choice(["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]),
    default="fp32",
    help="Format; tf32 takes its 19 bits, fp8 is E4M3.",
)
@AS_JSON
def show(pattern: str, name: str, as_json: bool) -> None:
    """Prints the parts, value and kind of a pattern (0x7fc00000, 0b…), or of a value's pattern
    (0.1, 1.0, 1e-3)."""
    form = FORMATS[name]
    if len(pattern) > LONGEST:
        too_long = Said("pattern_too_long", {"most": LONGEST})
        raise ConfigurationError(of_source(f"pattern={pattern[:12]}…", too_long))
    asked = None
    if VALUE.fullmatch(pattern):
        asked = Fraction(pattern)
        word = encode(asked, form)
    else:
        word = _word(pattern)
    try:
        number = decode(word, form)
    except ValueError as error:
        raise ConfigurationError(of_source(f"pattern={pattern}", said_by(error))) from None
    off = None
    if asked is not None and math.isfinite(number.value):
        off = float(Fraction(number.value) - asked)
    if as_json:
        fields = {"format": name, "pattern": f"{word:#x}", **asdict(number)}
        del fields["value"]  # which the answer has: JSON has no infinity and no NaN
        answer = answered(number.value, "", "exact")
        say_json(answer.line(fields if asked is None else fields | {"off": off}))
        return
    for key, fact in _facts(word, number, form).items():
        say(f"{key:10}{fact}")
    if off is not None:
        say(f"{'off by':10}{off!r}" if off else f"{'off by':10}0, exact")


def _word(pattern: str) -> int:
    """Bits as an integer. Raises ConfigurationError for what is none, or could be a value too."""
    if WHOLE.fullmatch(pattern):
        either: Numbers = {"pattern": pattern, "bits": f"{int(pattern):#x}"}
        raise ConfigurationError(Said("value_or_bits", either))
    if not PATTERN.fullmatch(pattern):
        raise ConfigurationError(of_source(f"pattern={pattern}", Said("give_bits_or_value")))
    try:
        return int(pattern, 0)
    except ValueError:
        raise ConfigurationError(of_source(f"pattern={pattern}", Said("no_bits"))) from None


def _facts(word: int, number: Decoded, form: Format) -> dict[str, object]:
    """Lines to print: the bits in their three fields, and what each of them is."""
    bits = f"{word:0{form.bits}b}"
    before = 1 + form.exponent_bits
    bias = (1 << form.exponent_bits - 1) - 1
    return {
        form.name: f"{bits[0]} {bits[1:before]} {bits[before:]}",
        "pattern": f"{word:#x}",
        "sign": number.sign,
        "exponent": f"{number.exponent}, bias {bias}",
        "fraction": f"{number.fraction} of {1 << form.bits - before}",
        "value": repr(number.value),
        "kind": number.kind,
        "ULP": "none" if number.ulp is None else repr(number.ulp),
    }
