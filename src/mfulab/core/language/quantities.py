"""Formats numbers for people: three significant digits, SI prefixes, units, and a true minus sign
(−73). A missing number is a dash."""

import math
from collections.abc import Mapping

PREFIXES = {
    -12: "p",
    -9: "n",
    -6: "µ",
    -3: "m",
    0: "",
    3: "k",
    6: "M",
    9: "G",
    12: "T",
    15: "P",
    18: "E",
}
ABSENT = "–"
MINUS = "−"  # U+2212, as on the axes of figures, not a hyphen
DURATION = {"hours": "{} h {:02} min", "minutes": "{} min {:02} s", "seconds": "{} s"}
WIDEST = 10_000  # factor beyond which a more precise number is of no use


def significant(value: float | None, digits: int = 3) -> str:
    """Formats with significant digits: `1234.5` is `1,230`, `0.012345` is `0.0123`, `1e-9` is
    `1.00e-09`. A dash for None, infinity and NaN."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    if value < 0:
        return f"{MINUS}{significant(-value, digits)}"
    exponent = math.floor(math.log10(value))
    if exponent < -4 or exponent > 8:
        return f"{value:.{digits - 1}e}"
    rounded = round(value, digits - 1 - exponent)
    exponent = math.floor(math.log10(rounded))
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"


def quantity(value: float | None, unit: str = "", digits: int = 3) -> str:
    """Formats with an SI prefix: `0.0123, "s"` is `12.3 ms`, `3.6e9, "FLOP"` is `3.60 GFLOP`.
    Percentages take no prefix. A dash for None, infinity and NaN."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if unit == "%":
        return f"{percent(value)} %"
    if value == 0:
        return f"0 {unit}".strip()
    exponent = min(18, max(-12, 3 * math.floor(math.log10(abs(value)) / 3)))
    scaled = significant(value / 10.0**exponent, digits)
    if scaled.removeprefix(MINUS).startswith("1,000") and exponent < 18:
        exponent = exponent + 3
        scaled = significant(math.copysign(1.0, value), digits)
    return f"{scaled} {PREFIXES[exponent]}{unit}".strip()


def with_minus(number: str) -> str:
    """Replaces a leading hyphen by a minus sign: `-1.5` is `−1.5`."""
    if number.startswith("-"):
        return f"{MINUS}{number[1:]}"
    return number


def percent(value: float) -> str:
    """Formats percent without the sign: whole numbers from 10 on, two significant digits below.
    Examples: `53`, `4.2`, `0.031`."""
    if abs(value) >= 9.95:
        return with_minus(f"{value:.0f}")
    return significant(value, 2)


def in_percent(value: float) -> str:
    """Formats percent with one decimal, as rungs of the ladder are compared in points: `46.4 %`,
    `0.031 %`."""
    shown = f"{value:.1f}" if value >= 0.95 or not value else percent(value)
    return f"{shown} %"


def duration(seconds: float, words: Mapping[str, str] = DURATION) -> str:
    """Formats seconds: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 07 min`, or with the `words` of another
    language."""
    if seconds < 9.95:
        return words["seconds"].format(f"{seconds:.1f}")
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return words["seconds"].format(rest)
    if minutes < 60:
        return words["minutes"].format(minutes, rest)
    return words["hours"].format(*divmod(minutes, 60))


def at_least(ratio: float) -> str:
    """Formats the smallest slowdown that a comparison can detect: `≥ 3.1 %`, `≥ ×2.3`, `>
    ×10,000`."""
    shown = change(ratio).removeprefix("+")
    if shown.startswith(">"):
        return shown
    return f"≥ {shown}"


def change(ratio: float) -> str:
    """Formats a ratio of times: `−3.1 %`, `+12 %`; from a factor of two on `×2.3`, `÷250`, and at
    most `> ×10,000`."""
    if ratio > WIDEST or ratio < 1 / WIDEST:
        return f"> {'×' if ratio > 1 else '÷'}{WIDEST:,}"
    if ratio >= 2:
        return f"×{significant(ratio, 2)}"
    if ratio <= 0.5:
        return f"÷{significant(1 / ratio, 2)}"
    return f"{'+' if ratio >= 1 else '−'}{percent(abs(100 * (ratio - 1)))} %"
