"""The format that a matmul is asked for, and the one that its error shows it used."""

import math

from mfulab.core.formats import BY_DTYPE, FORMATS, Format
from mfulab.core.groups import PrecisionConfig

# What an implementation might secretly do with operands of a type, and the error that would show it. Of types that are
# not here nothing but their own rounding is expected.
_SUSPECTS = {
    "float64": {"fp64": 1.1e-15, "fp32": 5.7e-7, "tf32": 2.9e-4, "bf16": 2.4e-3},
    "float32": {"fp32": 5.7e-7, "tf32": 2.9e-4, "bf16": 2.4e-3},
    "float16": {"fp16": 2.1e-4, "bf16": 2.4e-3},
}


def format_of(precision: PrecisionConfig) -> Format:
    """The format that a precision asks for."""
    if precision.tf32:
        return FORMATS["tf32"]
    return BY_DTYPE[precision.dtype]


def effective_precision(form: Format, relative_error: float, k: int) -> str | None:
    """The format whose rounding the error shows, whatever was asked for; None if it fits none. A float32 matmul with
    an error of 3e-4 was done in tf32."""
    if not math.isfinite(relative_error):
        return None
    if form.error == 0:
        return form.name if relative_error == 0 else None
    candidates = {
        name: FORMATS[name].tolerance(k) / FORMATS[name].error * error
        for name, error in _SUSPECTS.get(form.operand, {form.name: form.error}).items()
    }
    fitting = [(most, name) for name, most in candidates.items() if relative_error <= most]
    return min(fitting)[1] if fitting else None
