"""Number formats of a matrix product: what goes in, what comes out, and the error that their rounding alone gives.

Expected errors are ‖C−R‖F / ‖R‖F for standard normal inputs and K = 1024 against a float64 product of the *quantised*
inputs; for tf32, which rounds its float32 inputs inside the multiplier, against the unquantised ones. They were
measured on correct implementations and follow from the significands: a float32 sum grows like 2⁻²⁴·√K, fp16 and bf16
round their output once.
"""

import math
from dataclasses import dataclass

from mfulab.schema.configs import PrecisionConfig


@dataclass(frozen=True)
class Format:
    """One way to multiply. `operand` and `output` are names of torch dtypes."""

    name: str
    operand: str
    output: str
    error: float
    grows_with_k: bool = False
    margin: float = 6.0

    def expected_error(self, k: int) -> float:
        """Relative Frobenius error that rounding gives for an inner dimension of k."""
        return self.error * math.sqrt(max(k, 16) / 1024) if self.grows_with_k else self.error

    def tolerance(self, k: int) -> float:
        """Largest accepted relative Frobenius error: a small multiple of what rounding gives."""
        return self.margin * self.expected_error(k)


FORMATS = {
    form.name: form
    for form in (
        Format("fp64", "float64", "float64", 1.1e-15, grows_with_k=True),
        Format("fp32", "float32", "float32", 5.7e-7, grows_with_k=True),
        Format("tf32", "float32", "float32", 2.9e-4),
        Format("fp16", "float16", "float16", 2.1e-4),
        Format("bf16", "bfloat16", "bfloat16", 1.7e-3),
        # Hopper accumulates fp8 products with about 14 bits: looser.
        Format("fp8", "float8_e4m3fn", "bfloat16", 1.7e-3, margin=10.0),
        Format("int8", "int8", "int32", 0.0),
    )
}

# What an implementation might secretly do with operands of a type, and the error that would show it.
_SUSPECTS = {
    "float64": {"fp64": 1.1e-15, "fp32": 5.7e-7, "tf32": 2.9e-4, "bf16": 2.4e-3},
    "float32": {"fp32": 5.7e-7, "tf32": 2.9e-4, "bf16": 2.4e-3},
    "float16": {"fp16": 2.1e-4, "bf16": 2.4e-3},
    "bfloat16": {"bf16": 1.7e-3},
    "float8_e4m3fn": {"fp8": 1.7e-3},
    "int8": {"int8": 0.0},
}


def format_of(precision: PrecisionConfig) -> Format:
    """The format that a precision asks for."""
    if precision.tf32:
        return FORMATS["tf32"]
    return next(form for form in FORMATS.values() if form.operand == precision.dtype)


def effective_precision(form: Format, relative_error: float, k: int) -> str | None:
    """The format whose rounding the error shows, whatever was asked for; None where the error fits none.

    A float32 product with an error of 3e-4 was done in tf32, and a tf32 product with one of 5e-7 in float32.
    """
    if not math.isfinite(relative_error):
        return None
    if form.name == "int8":
        return "int8" if relative_error == 0 else None
    candidates = {
        name: FORMATS[name].tolerance(k) / FORMATS[name].error * error
        for name, error in _SUSPECTS[form.operand].items()
    }
    return next(
        (name for name, most in sorted(candidates.items(), key=lambda item: item[1]) if relative_error <= most), None
    )
