"""The number formats, once: torch's types, sizes, and the error that rounding gives in a matmul.

Expected errors are ‖C−R‖F / ‖R‖F for standard normal inputs and K = 1024 against a float64 matmul of the *quantised*
inputs; for tf32, which rounds its float32 inputs inside the multiplier, against the unquantised ones. They were
measured on correct implementations and follow from the significands: a float32 sum grows like 2⁻²⁴·√K, fp16 and bf16
round their output once.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """One number format as matmuls use it."""

    name: str  # as in `config/precision` and in the tables of peaks
    operand: str  # torch's name of the operands' dtype
    output: str  # torch's name of the result's dtype
    bits: int  # of a number that carry information; tf32 is stored in 32
    bytes: int  # that a number takes in memory
    error: float  # relative Frobenius error that rounding gives at K = 1024
    grows_with_k: bool = False  # whether that error grows like √K
    margin: float = 6.0  # accepted multiple of that error
    on_tensor_cores: bool = True  # whether GPUs multiply it on tensor cores (fp64 too, but only some do)
    is_floating: bool = True

    def expected_error(self, k: int) -> float:
        """Relative Frobenius error that rounding gives for an inner dimension of k."""
        return self.error * math.sqrt(max(k, 16) / 1024) if self.grows_with_k else self.error

    def tolerance(self, k: int) -> float:
        """Largest accepted relative Frobenius error: a small multiple of what rounding gives."""
        return self.margin * self.expected_error(k)


FORMATS = {
    form.name: form
    for form in (
        Format("fp64", "float64", "float64", 64, 8, 1.1e-15, grows_with_k=True, on_tensor_cores=False),
        Format("fp32", "float32", "float32", 32, 4, 5.7e-7, grows_with_k=True, on_tensor_cores=False),
        Format("tf32", "float32", "float32", 19, 4, 2.9e-4),
        Format("fp16", "float16", "float16", 16, 2, 2.1e-4),
        Format("bf16", "bfloat16", "bfloat16", 16, 2, 1.7e-3),
        # Hopper accumulates fp8 matmuls with about 14 bits: looser.
        Format("fp8", "float8_e4m3fn", "bfloat16", 8, 1, 1.7e-3, margin=10.0),
        Format("int8", "int8", "int32", 8, 1, 0.0, is_floating=False),
    )
}
# Bytes of a number by format; fp4, which no matmul here is measured in, is one of devices and traces.
ELEMENT_BYTES = {form.name: float(form.bytes) for form in FORMATS.values()} | {"fp4": 0.5}
# The format of a torch dtype; float32's own, since TF32 is a way to multiply it and no dtype.
BY_DTYPE = {form.operand: form for form in FORMATS.values() if form.name != "tf32"}
# Other types that are multiplied at the rate of one above.
_ALIKE = {
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), "fp8"),
    **dict.fromkeys(("uint8", "qint8", "quint8"), "int8"),
}


def format_name(dtype: str, tf32: bool = False) -> str | None:
    """The name of the format that matmuls of torch's `dtype` are asked to use; None for a dtype that has none."""
    if tf32:
        return "tf32"
    form = BY_DTYPE.get(dtype)
    return form.name if form else _ALIKE.get(dtype)
