"""Random operands in a format, their exact product in float64, and the error of a result against
it."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from mfulab.core.formats import FORMATS, Format
from mfulab.kernels.base import Shape

# Formats in which an implementation might silently compute operands of a type, and the resulting
# error. Other types are only expected to have their own rounding.
_SUSPECTS = {
    "float64": {"fp64": 1.1e-15, "fp32": 5.7e-7, "tf32": 2.9e-4, "bf16": 2.4e-3},
    "float32": {"fp32": 5.7e-7, "tf32": 2.9e-4, "bf16": 2.4e-3},
    "float16": {"fp16": 2.1e-4, "bf16": 2.4e-3},
}


@dataclass(frozen=True)
class Operands:
    """A[batch,m,k] and B[batch,k,n] in the format's operand type, C[batch,m,n] in its output type.
    All are C-contiguous."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor

    def poison(self) -> None:
        """Fills C with a value that no matmul produces, so that elements that are not written are
        detected."""
        poison = math.nan
        if not self.c.is_floating_point():
            poison = torch.iinfo(self.c.dtype).min
        self.c.fill_(poison)

    def refresh(self, exact: torch.Tensor, seed: int) -> None:
        """Flips signs of rows of A, columns of B and `exact` in place, and poisons C. A result kept
        from before is then wrong."""
        generator = torch.Generator(device=self.a.device).manual_seed(seed)
        for matrix, shape in (
            (self.a, (*self.a.shape[:2], 1)),
            (self.b, (self.b.shape[0], 1, self.b.shape[2])),
        ):
            turned = torch.randint(
                0, 2, shape, generator=generator, device=matrix.device, dtype=torch.uint8
            )
            if matrix.element_size() == 1 and matrix.is_floating_point():
                matrix.view(torch.uint8).bitwise_xor_(
                    turned << 7
                )  # fp8 has no arithmetic of its own
            else:
                matrix.mul_(1 - 2 * turned.to(matrix.dtype))
            exact.mul_(1 - 2 * turned.to(exact.dtype))
        self.poison()


def random_operands(shape: Shape, form: Format, device: Any, seed: int) -> Operands:
    """Standard normal values; for int8, uniform over -127 … 127. Never zeros, which make a GPU
    faster."""
    generator = torch.Generator(device=device).manual_seed(seed)
    batch, m, n, k = shape

    def draw(rows: int, columns: int) -> torch.Tensor:
        size = (batch, rows, columns)
        dtype = getattr(torch, form.operand)
        if form.operand == "int8":
            return torch.randint(-127, 128, size, generator=generator, device=device, dtype=dtype)
        drawn = torch.float64 if form.operand == "float64" else torch.float32
        return torch.randn(size, generator=generator, device=device, dtype=drawn).to(dtype)

    a = draw(m, k)
    b = draw(k, n)
    c = torch.empty(batch, m, n, dtype=getattr(torch, form.output), device=device)
    return Operands(a, b, c)


def exact_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Product of the quantised operands in float64. Exact for int8 up to k = 5e11."""
    return torch.matmul(a.to(torch.float64), b.to(torch.float64))


def effective_precision(form: Format, relative_error: float, k: int) -> str | None:
    """Format whose rounding matches the error, regardless of the requested one: 3e-4 is tf32's.
    None if no format fits."""
    if not math.isfinite(relative_error):
        return None
    if form.error == 0:
        return form.name if relative_error == 0 else None
    suspects = _SUSPECTS.get(form.operand, {form.name: form.error})
    fitting = []
    for name, error in suspects.items():
        suspect = FORMATS[name]
        largest_error = suspect.tolerance(k) / suspect.error * error
        if relative_error <= largest_error:
            fitting.append((largest_error, name))
    if fitting:
        return min(fitting)[1]
    return None


@dataclass(frozen=True)
class Check:
    """Error of a result against the float64 matmul."""

    relative_error: float  # ‖C−R‖F / ‖R‖F
    max_absolute_error: float
    tolerance: float
    effective_precision: str | None

    @property
    def correct(self) -> bool:
        return self.relative_error <= self.tolerance  # False for NaN

    def __str__(self) -> str:
        like = ""
        if self.effective_precision:
            like = f", as {self.effective_precision} gives"
        return f"relative error {self.relative_error:.1e}{like}; at most {self.tolerance:.1e} is accepted"


def check(c: torch.Tensor, exact: torch.Tensor, form: Format, k: int) -> Check:
    """Compares a result with `exact_product`. A NaN or infinity anywhere gives an infinite
    error."""
    difference = c.to(torch.float64) - exact
    wrong = float(torch.linalg.vector_norm(difference))
    right = float(torch.linalg.vector_norm(exact))
    relative = wrong
    if wrong and right:  # an integer matmul may be all zeros
        relative = wrong / right
    if not bool(torch.isfinite(difference).all()):
        relative = math.inf
    largest = float(difference.abs().max())
    effective = effective_precision(form, relative, k)
    return Check(relative, largest, form.tolerance(k), effective)
