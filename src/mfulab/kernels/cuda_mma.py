"""CUDA C on tensor cores by mma.sync, with asynchronous copies and matrix loads. Runs on every GPU
since Ampere."""

from typing import ClassVar

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, Shape
from mfulab.kernels.cuda_c import CudaC

_TYPES = {"fp16": ("__half", "f16"), "bf16": ("__nv_bfloat16", "bf16")}
TILE_M = 128
TILE_N = 256
DEPTH = 32
STAGES = 4
THREADS = 256
ITEM_BYTES = 2
ROW = 8  # elements per copy of 16 bytes


class CudaMma(CudaC):
    """Computes 64×64 of C per warp with 64 products and eight matrix loads. WMMA's 64×32 takes 16
    products and six loads."""

    after = "cuda_wmma"
    adds = (
        "mma.sync on matrices that four stages of asynchronous copies bring; C stays in registers"
    )
    precisions = tuple(_TYPES)
    source = "mma.cu"
    least_capability: ClassVar[tuple[int, int]] = (8, 0)

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.n % ROW or shape.k % ROW:
            raise UnsupportedError(
                Said(
                    "rows_of_16_bytes",
                    kernel=str(self),
                    shape=str(shape),
                    precision=str(self.precision),
                )
            )

    def defines(self) -> dict[str, str]:
        operand, kind = _TYPES[self.precision]
        sides = {"BM": TILE_M, "BN": TILE_N, "BK": DEPTH, "STAGES": STAGES}
        names = {"OPERAND": operand, "RESULT": operand, "KIND": kind}
        return names | {name: str(side) for name, side in sides.items()}

    def launch(self, shape: Shape) -> Launch:
        tiles_bytes = STAGES * (TILE_M + TILE_N) * DEPTH * ITEM_BYTES
        return Launch((THREADS,), shape.grid(TILE_M, TILE_N), tiles_bytes)
