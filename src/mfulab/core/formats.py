"""The table of number formats: torch's dtypes, sizes, and the rounding error of a matmul in each.
The expected error is ‖C−R‖F / ‖R‖F for standard normal inputs and K = 1024. The reference R is the
float64 product of the *quantised* inputs; for tf32, of the unquantised ones. The error of float32
grows like 2⁻²⁴·√K; fp16 and bf16 round their output once."""

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """One number format as used in matmuls."""

    name: str  # as in `config/precision` and in the tables of peaks
    operand: str  # torch's name of the operands' dtype
    output: str  # torch's name of the result's dtype
    bits: int  # that carry information; tf32 has 19, stored in 32
    bytes: int  # that a number takes in memory
    exponent_bits: int  # all other bits except the sign are the fraction
    error: float  # relative Frobenius error due to rounding at K = 1024
    grows_with_k: bool = False  # whether that error grows like √K
    margin: float = 6.0  # accepted multiple of that error
    # whether all GPUs multiply it on tensor cores; only some do for fp64
    on_tensor_cores: bool = True
    is_floating: bool = True

    def expected_error(self, k: int) -> float:
        """Relative Frobenius error due to rounding, for an inner dimension of k."""
        if self.grows_with_k:
            return self.error * math.sqrt(max(k, 16) / 1024)
        return self.error

    def tolerance(self, k: int) -> float:
        """Largest accepted relative Frobenius error: a small multiple of the expected one."""
        return self.margin * self.expected_error(k)


@dataclass(frozen=True)
class Decoded:
    """A decoded bit pattern: its fields as stored, its value, and the unit in the last place (ulp)
    there."""

    sign: int
    exponent: int
    fraction: int
    value: float
    kind: str
    ulp: float | None = None  # None for infinities and NaN


def decode(pattern: int, form: Format) -> Decoded:
    """Decodes a bit pattern by IEEE 754-2019, 3.4; fp8 (E4M3) by OCP, 2023, section 5. Raises
    ValueError if the pattern has more bits than the format."""
    if not 0 <= pattern < 1 << form.bits:
        raise ValueError(f"{pattern:#x}: not a pattern of {form.bits} bits, which {form.name} has")
    fraction_bits = form.bits - 1 - form.exponent_bits
    ones = (1 << form.exponent_bits) - 1
    above = 1 << fraction_bits
    sign = pattern >> form.bits - 1
    exponent = pattern >> fraction_bits & ones
    fraction = pattern & above - 1
    signed = math.copysign(1.0, -sign)
    if exponent == ones and form.name == "fp8":
        if fraction == above - 1:
            return Decoded(sign, exponent, fraction, math.nan, "NaN")
    elif exponent == ones:
        if not fraction:
            return Decoded(sign, exponent, fraction, signed * math.inf, "infinity")
        kind = "quiet NaN" if 2 * fraction >= above else "signalling NaN"
        return Decoded(sign, exponent, fraction, math.nan, kind)
    ulp = math.ldexp(1.0, max(exponent, 1) - ones // 2 - fraction_bits)
    if exponent:
        return Decoded(sign, exponent, fraction, signed * (fraction + above) * ulp, "normal", ulp)
    kind = "subnormal" if fraction else "zero"
    return Decoded(sign, exponent, fraction, signed * fraction * ulp, kind, ulp)


def encode(value: Fraction, form: Format) -> int:
    """Bit pattern nearest to an exact value, ties to even (IEEE 754-2019, 4.3.1). Too large values
    become infinity; in fp8, which has none, the largest number (OCP, 2023, 5.2)."""
    fraction_bits = form.bits - 1 - form.exponent_bits
    ones = (1 << form.exponent_bits) - 1
    least = 1 - ones // 2  # exponent of the smallest normal number
    sign = int(value < 0) << form.bits - 1
    magnitude = abs(value)
    if not magnitude:
        return sign
    exponent = max(_exponent(magnitude), least)
    units = round(magnitude / Fraction(2) ** (exponent - fraction_bits))
    # A unit that carries into the next power of two carries into the exponent's field too.
    pattern = units + (exponent - least << fraction_bits)
    beyond = (1 << form.bits - 1) - 2 if form.name == "fp8" else ones << fraction_bits
    return sign | min(pattern, beyond)


def _exponent(value: Fraction) -> int:
    """Exponent of the largest power of two that is at most `value`, which must be positive."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent - (Fraction(2) ** exponent > value)


FORMATS = {
    form.name: form
    for form in (
        Format(
            "fp64",
            "float64",
            "float64",
            64,
            8,
            11,
            1.1e-15,
            grows_with_k=True,
            on_tensor_cores=False,
        ),
        Format(
            "fp32", "float32", "float32", 32, 4, 8, 5.7e-7, grows_with_k=True, on_tensor_cores=False
        ),
        Format("tf32", "float32", "float32", 19, 4, 8, 2.9e-4),
        Format("fp16", "float16", "float16", 16, 2, 5, 2.1e-4),
        Format("bf16", "bfloat16", "bfloat16", 16, 2, 8, 1.7e-3),
        # Hopper accumulates fp8 matmuls with about 14 bits: looser.
        Format("fp8", "float8_e4m3fn", "bfloat16", 8, 1, 4, 1.7e-3, margin=10.0),
        Format("int8", "int8", "int32", 8, 1, 0, 0.0, is_floating=False),
    )
}
# Bytes of a number per format; fp4 occurs in peaks of devices and in traces, but is not measured.
ELEMENT_BYTES = {form.name: float(form.bytes) for form in FORMATS.values()} | {"fp4": 0.5}
# The format of a torch dtype; float32 is fp32, since TF32 is a way to multiply it and not a dtype.
BY_DTYPE = {form.operand: form for form in FORMATS.values() if form.name != "tf32"}
# Other dtypes that are multiplied at the rate of one of these formats.
_ALIKE = {
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), "fp8"),
    **dict.fromkeys(("uint8", "qint8", "quint8"), "int8"),
}


def format_name(dtype: str, tf32: bool = False) -> str | None:
    """Name of the number format that matmuls of a torch `dtype` use; None for a dtype without
    one."""
    if tf32:
        return "tf32"
    form = BY_DTYPE.get(dtype)
    if form:
        return form.name
    return _ALIKE.get(dtype)
