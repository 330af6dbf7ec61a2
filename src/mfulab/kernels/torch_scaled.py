"""torch: `torch._scaled_mm`, the framework's fp8 matmul (cuBLASLt underneath)."""

from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Launch, MatmulKernel, Shape


class TorchScaled(MatmulKernel):
    """e4m3 operands with scales of one, bfloat16 result, no fast accumulation; B is laid out by columns beforehand,
    in the end-to-end time only."""

    family, after = "library", "cublaslt_bias"
    adds = "the framework's fp8 matmul"
    devices = ("cuda",)
    precisions = ("fp8",)

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.batch > 1 or shape.n % 16 or shape.k % 16:
            raise UnsupportedError(f"{self}: needs one matrix, n and k multiples of 16, not {shape}")

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        one = torch.ones((), device=a.device)
        return a[0], b[0].t().contiguous().t(), c[0], one

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c, one = operands
        fast = self.accumulates_fast
        torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=c.dtype, out=c, use_fast_accum=fast)


class TorchScaledFast(TorchScaled):
    """torch's fp8 matmul with fast accumulation: the peer of kernels whose `wgmma` adds up all of k by itself."""

    after, adds = "torch_scaled", "sums that stay in the tensor cores, with fewer bits"
    accumulates_fast = True
