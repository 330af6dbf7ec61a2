"""torch: `torch.matmul`, which calls MKL or oneDNN on a CPU and cuBLAS on a GPU. The reference of every other rung."""

from typing import Any

import torch

from mfulab.kernels.base import Launch, MatmulKernel, Shape
from mfulab.schema.errors import UnsupportedError


class Torch(MatmulKernel):
    """float32 products use TF32 only where the precision is tf32; the switch is process-wide and set at each run."""

    family, rung = "library", 1
    adds = "the framework's own product: MKL or oneDNN on a CPU, cuBLAS on a GPU"
    devices = ("cpu", "cuda")
    precisions = ("fp64", "fp32", "tf32", "fp16", "bf16", "int8")

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if device == "cpu" and self.precision == "tf32":
            raise UnsupportedError("tf32 is a format of NVIDIA's tensor cores; a CPU has none")
        if device == "cuda" and self.precision == "int8" and (shape.m <= 16 or shape.n % 8 or shape.k % 8):
            raise UnsupportedError(f"torch._int_mm needs m > 16 and n, k multiples of 8, not {shape}")

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        # A batch of one as plain matrices: bmm would take another path.
        return (a[0], b[0], c[0]) if len(a) == 1 else (a, b, c)

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c = operands
        if self.precision == "int8":
            for a_matrix, b_matrix, c_matrix in zip(*(x if x.ndim == 3 else x[None] for x in operands), strict=True):
                torch._int_mm(a_matrix, b_matrix, out=c_matrix)
            return
        allowed = "high" if self.precision == "tf32" else "highest"
        if torch.get_float32_matmul_precision() != allowed:
            torch.set_float32_matmul_precision(allowed)
        torch.matmul(a, b, out=c)
