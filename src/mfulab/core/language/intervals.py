"""Words for the 95 % interval of a number, which are told only where the interval is wide."""

import re
from collections.abc import Callable

from mfulab.core.language import Texts

WIDE = 0.1  # of a value: an interval that reaches no further to either side is not told
UNIT = re.compile(r"(?<=\d)[^\d.,]+$")
Form = Callable[[float], str]


def ends_in_words(
    value: float, low: float | None, high: float | None, form: Form, language: str = "en"
) -> str:
    """Both ends of a value's interval in brackets, to follow the value: ` (1.3 to 2.1)`. Empty if
    the interval is unknown or narrow. `form` writes a number; a common unit is left out."""
    if low is None or high is None or not is_wide(value, low, high):
        return ""
    shown = [form(end) for end in (low, value, high)]
    units = {UNIT.findall(words)[-1] for words in shown if UNIT.search(words)}
    if len(units) == 1:
        shown = [UNIT.sub("", words) for words in shown]
    return Texts(language)("ends", low=shown[0], high=shown[-1])


def is_wide(value: float, low: float, high: float) -> bool:
    """True if an interval reaches further than WIDE of the value to a side."""
    return value > 0 and max(value - low, high - value) > WIDE * value
