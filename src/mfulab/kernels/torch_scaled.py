"""torch: `torch._scaled_mm`, its fp8 matmul (cuBLASLt underneath). Reference for all fp8
kernels."""

from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, MatmulKernel, Shape
from mfulab.kernels.torch_matmul import Torch


class TorchScaled(MatmulKernel):
    """Multiplies e4m3 operands with scales of one into bfloat16. B is made column-major beforehand
    (untimed)."""

    family = "library"
    after = "cublaslt_bias"
    adds = "the framework's fp8 matmul"
    devices = ("cuda",)
    precisions = ("fp8",)

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.batch > 1 or shape.n % 16 or shape.k % 16:
            raise UnsupportedError(Said("scaled_needs", kernel=str(self), shape=str(shape)))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        scale = torch.ones((), device=a.device)
        return a[0], b[0].t().contiguous().t(), c[0], scale

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c, scale = operands
        fast = self.accumulates_fast
        torch._scaled_mm(
            a, b, scale_a=scale, scale_b=scale, out_dtype=c.dtype, out=c, use_fast_accum=fast
        )


class TorchScaledFast(TorchScaled):
    """torch's fp8 matmul with fast accumulation, the counterpart of kernels whose `wgmma`
    accumulates over all of k."""

    after = "torch_scaled"
    adds = "sums that stay in the tensor cores, with fewer bits"
    accumulates_fast = True


def reference_for(
    measured: MatmulKernel, device: str, shape: Shape
) -> tuple[str, MatmulKernel] | None:
    """Name and kernel of torch's matmul for the same device and shape. None if torch does not
    support it. In fp8 it accumulates as `measured` does."""
    scaled = TorchScaledFast if measured.accumulates_fast else TorchScaled
    kind = scaled if measured.precision == "fp8" else Torch
    try:
        kernel = kind(measured.precision)
        kernel.require(device, shape)
    except UnsupportedError:
        return None
    if device == "cpu":
        return "torch", kernel
    how = ", fast accumulation" if measured.accumulates_fast else ""
    return (
        f"cuBLASLt (torch._scaled_mm{how})"
        if measured.precision == "fp8"
        else "cuBLAS (torch.matmul)"
    ), kernel
