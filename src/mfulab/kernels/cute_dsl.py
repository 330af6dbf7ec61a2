"""CuTe DSL (`nvidia-cutlass-dsl`): CUTLASS's layouts in Python; copies, fragments and products are placed by hand."""

from typing import Any

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Launch, MatmulKernel, Shape
from mfulab.kernels.devices import current_stream

TILE = (128, 128, 32)  # as in cute_source, which needs the package


class CuteDsl(MatmulKernel):
    """Whole tiles alone; compiled anew for each shape."""

    family, after = "tile language", "helion"
    adds = "CuTe DSL: three stages of asynchronous copies, swizzled shared memory and mma.sync, all by layouts"
    devices = ("cuda",)
    precisions = ("fp16", "bf16")
    least_capability = (8, 0)

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.m % TILE[0] or shape.n % TILE[1] or shape.k % TILE[2]:
            tile = "×".join(map(str, TILE))
            raise UnsupportedError(f"{self}: {shape} is not made of whole tiles of {tile}")

    def launch(self, shape: Shape) -> Launch:
        return Launch(TILE, shape.grid(*TILE[:2]))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        from cutlass.cute.runtime import from_dlpack

        from mfulab.kernels.cute_source import compiled

        batch, m, k = a.shape
        views = (a.permute(1, 2, 0), b.permute(2, 1, 0), c.permute(1, 2, 0))
        tensors = [from_dlpack(view, assumed_align=16) for view in views]
        return (*tensors, compiled(self.precision, batch, m, c.shape[2], k))

    def run(self, *operands: Any, launch: Launch) -> None:
        from cuda.bindings.driver import CUstream

        a, b, c, multiply = operands
        multiply(a, b, c, CUstream(current_stream()))
