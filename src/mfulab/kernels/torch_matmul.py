"""torch: `torch.matmul`, which calls MKL or oneDNN on a CPU and cuBLAS on a GPU. Reference for all
other kernels."""

from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, MatmulKernel, Shape


class Torch(MatmulKernel):
    """Uses TF32 for float32 matmuls only if the precision is tf32. The switch is process-wide, and
    set at each run. For int8, B is made column-major beforehand (untimed)."""

    family = "library"
    after = ""
    adds = "the framework's own matmul: MKL or oneDNN on a CPU, cuBLAS on a GPU"
    devices = ("cpu", "cuda")
    precisions = ("fp64", "fp32", "tf32", "fp16", "bf16", "int8")

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if device == "cpu" and self.precision == "tf32":
            raise UnsupportedError(Said("tf32_not_on_cpu"))
        if (
            device == "cuda"
            and self.precision == "int8"
            and (shape.m <= 16 or shape.n % 8 or shape.k % 8)
        ):
            raise UnsupportedError(Said("int_mm_needs", shape=str(shape)))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        if self.precision == "int8":  # the fast kernels read both operands along k
            b = b.transpose(1, 2).contiguous().transpose(1, 2)
        # A batch of one becomes plain matrices, because bmm uses different kernels.
        return (a[0], b[0], c[0]) if len(a) == 1 else (a, b, c)

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c = operands
        if self.precision == "int8":
            for a_matrix, b_matrix, c_matrix in zip(
                *(x if x.ndim == 3 else x[None] for x in operands), strict=True
            ):
                try:
                    torch._int_mm(a_matrix, b_matrix, out=c_matrix)
                except RuntimeError as error:
                    if "CUBLAS_STATUS_NOT_SUPPORTED" not in str(error):
                        raise
                    raise UnsupportedError(Said("cublas_lacks_it", kernel=str(self))) from error
            return
        round_to_tf32(self.precision == "tf32")
        # A batch of 1×1 matrices is an element-wise product, for which nobody would use bmm.
        (torch.mul if a.ndim == 3 and a[0].numel() == b[0].numel() == 1 else torch.matmul)(
            a, b, out=c
        )


def round_to_tf32(allowed: bool) -> None:
    """Allows or forbids float32 matmuls on a GPU to round to TF32. Setting torch's older switch
    sets both."""
    switch = torch.backends.cuda.matmul
    if (switch.fp32_precision == "tf32") != allowed:  # type: ignore[attr-defined]
        switch.allow_tf32 = allowed
