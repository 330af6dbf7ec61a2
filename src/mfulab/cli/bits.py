"""`mfulab bits`: what a bit pattern is in a number format."""

import json
import math
from dataclasses import asdict

from mfulab.core.errors import ConfigurationError
from mfulab.core.formats import FORMATS, decode


def show(pattern: str, name: str, as_json: bool) -> None:
    """Prints the parts, value and kind of a pattern: 0x7fc00000, 0b…, or a decimal integer."""
    form = FORMATS[name]
    try:
        word = int(pattern, 0)
    except ValueError:
        raise ConfigurationError(f"pattern={pattern}: give bits as 0x3f800000, 0b1111 or a decimal integer") from None
    try:
        number = decode(word, form)
    except ValueError as error:
        raise ConfigurationError(f"pattern={pattern}: {error}") from None
    if as_json:
        value = number.value if math.isfinite(number.value) else str(number.value)  # JSON has no infinity and no NaN
        print(json.dumps({"format": name, "pattern": f"{word:#x}"} | asdict(number) | {"value": value}))
        return
    bits, before = f"{word:0{form.bits}b}", 1 + form.exponent_bits
    facts = {name: f"{bits[0]} {bits[1:before]} {bits[before:]}", "sign": number.sign}
    facts |= {"exponent": f"{number.exponent}, bias {(1 << form.exponent_bits - 1) - 1}"}
    facts |= {"fraction": f"{number.fraction} of {1 << form.bits - before}", "value": repr(number.value)}
    facts |= {"kind": number.kind, "ULP": "none" if number.ulp is None else repr(number.ulp)}
    print(*(f"{key:10}{fact}" for key, fact in facts.items()), sep="\n")
