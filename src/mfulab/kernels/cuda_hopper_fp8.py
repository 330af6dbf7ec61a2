"""CUDA C for Hopper in fp8: the fastest 16-bit kernel, with half the bytes and twice the
multiply-adds per clock."""

from typing import Any

from mfulab.kernels.cuda_hopper_hilbert import CudaHopperHilbert
from mfulab.kernels.hopper import BOX, ROW_BYTES, View


class CudaHopperFp8(CudaHopperHilbert):
    """Multiplies e4m3 operands into bf16. wgmma takes 8-bit operands only along k, so B is
    transposed beforehand (untimed)."""

    after = "cuda_hopper_hilbert"
    adds = "fp8: twice the products a clock, half the bytes; B transposed beforehand"
    precisions = ("fp8",)
    accumulates_fast = True
    item_bytes = 1

    def defines(self) -> dict[str, str]:
        return super().defines() | {"TYPE": "e4m3", "RESULT": "bf16", "B_ALONG_K": "1"}

    def views(self, a: Any, b: Any, c: Any) -> list[View]:
        first, _, last = super().views(a, b, c)
        batch, k, n = b.shape
        return [
            first,
            View(b.transpose(1, 2).contiguous(), (k, n, batch), (ROW_BYTES, BOX, 1)),
            last,
        ]
