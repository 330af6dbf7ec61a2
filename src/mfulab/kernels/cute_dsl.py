"""CuTe DSL (`nvidia-cutlass-dsl`): CUTLASS's layouts in Python; copies, fragments and products are placed by hand."""

import functools
from typing import Any

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Launch, MatmulKernel, Shape

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
        return Launch(TILE, (shape.n // TILE[1], shape.m // TILE[0], shape.batch))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        from cutlass.cute.runtime import from_dlpack

        batch, m, k = a.shape
        views = (a.permute(1, 2, 0), b.permute(2, 1, 0), c.permute(1, 2, 0))
        tensors = [from_dlpack(view, assumed_align=16) for view in views]
        return (*tensors, compiled(self.precision, batch, m, c.shape[2], k))

    def run(self, *operands: Any, launch: Launch) -> None:
        import torch
        from cuda.bindings.driver import CUstream

        a, b, c, multiply = operands
        multiply(a, b, c, CUstream(torch.cuda.current_stream().cuda_stream))


@functools.cache
def compiled(precision: str, batch: int, m: int, n: int, k: int) -> Any:
    """The kernel for a shape; raises ModuleNotFoundError without nvidia-cutlass-dsl."""
    from mfulab.kernels import cute_source

    return cute_source.compiled(precision, batch, m, n, k)
