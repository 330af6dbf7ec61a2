"""The number formats, once: torch's types, sizes, and the error that rounding gives in a matmul.
Expected errors are ‖C−R‖F / ‖R‖F for standard normal inputs and K = 1024 against float64 of the
*quantised* inputs; tf32's against the unquantised ones. A float32 sum grows like 2⁻²⁴·√K, fp16 and
bf16 round their output once."""

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """One number format as matmuls use it."""

    name: str  # as in `config/precision` and in the tables of peaks
    operand: str  # torch's name of the operands' dtype
    output: str  # torch's name of the result's dtype
    bits: int  # of a number that carry information; tf32 is stored in 32
    bytes: int  # that a number takes in memory
    exponent_bits: int  # the rest but the sign is the fraction
    error: float  # relative Frobenius error that rounding gives at K = 1024
    grows_with_k: bool = False  # whether that error grows like √K
    margin: float = 6.0  # accepted multiple of that error
    # whether GPUs multiply it on tensor cores (fp64 too, but only some do)
    on_tensor_cores: bool = True
    is_floating: bool = True

    def expected_error(self, k: int) -> float:
        """Relative Frobenius error that rounding gives for an inner dimension of k."""
        if self.grows_with_k:
            return self.error * math.sqrt(max(k, 16) / 1024)
        return self.error

    def tolerance(self, k: int) -> float:
        """Largest accepted relative Frobenius error: a small multiple of what rounding gives."""
        return self.margin * self.expected_error(k)


@dataclass(frozen=True)
class Decoded:
    """Parts of a bit pattern as stored, its value, and the unit in the last place at that value."""

    sign: int
    exponent: int
    fraction: int
    value: float
    kind: str
    ulp: float | None = None  # None of infinities and NaN


def decode(pattern: int, form: Format) -> Decoded:
    """Reads a bit pattern: IEEE 754-2019, 3.4, and fp8 (E4M3) by OCP, 2023, section 5. Raises
    ValueError beyond its bits."""
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
        return Decoded(
            sign,
            exponent,
            fraction,
            math.nan,
            "quiet NaN" if 2 * fraction >= above else "signalling NaN",
        )
    ulp = math.ldexp(1.0, max(exponent, 1) - ones // 2 - fraction_bits)
    value = signed * (fraction + above * (exponent > 0)) * ulp
    return Decoded(
        sign,
        exponent,
        fraction,
        value,
        "normal" if exponent else "subnormal" if fraction else "zero",
        ulp,
    )


def encode(value: Fraction, form: Format) -> int:
    """Bit pattern nearest to an exact value, ties to even (IEEE 754-2019, 4.3.1). What is too large
    becomes infinity, in fp8 its largest number, as it has no infinity (OCP, 2023, 5.2)."""
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
    """The largest power of two that is no more than a positive value, as its exponent."""
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
# Bytes of a number by format; fp4, which no matmul here is measured in, is one of devices and
# traces.
ELEMENT_BYTES = {form.name: float(form.bytes) for form in FORMATS.values()} | {"fp4": 0.5}
# The format of a torch dtype; float32's own, since TF32 is a way to multiply it and no dtype.
BY_DTYPE = {form.operand: form for form in FORMATS.values() if form.name != "tf32"}
# Other types that are multiplied at the rate of one above.
_ALIKE = {
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), "fp8"),
    **dict.fromkeys(("uint8", "qint8", "quint8"), "int8"),
}


def format_name(dtype: str, tf32: bool = False) -> str | None:
    """The name of the format that matmuls of torch's `dtype` are asked to use; None for a dtype
    that has none."""
    if tf32:
        return "tf32"
    form = BY_DTYPE.get(dtype)
    if form:
        return form.name
    return _ALIKE.get(dtype)
