"""Triton, persistent: as many programs as SMs, each taking tile after tile, fed by the bulk copy engine."""

from typing import Any

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.devices import properties
from mfulab.kernels.triton_kernels import TritonKernel, matmul_persistent


class TritonPersistent(TritonKernel):
    """Tensor descriptors need rows of multiples of 16 bytes, and no tile of B that reaches into the next matrix."""

    after, adds = "triton_autotuned", "programs that stay, one an SM, and whole tiles by the bulk copy engine"

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        item = FORMATS[self.precision].bytes
        if shape.k * item % 16 or (not self.b_along_k and shape.n * item % 16):
            raise UnsupportedError(f"{self}: rows must be multiples of 16 bytes, not {shape} in {self.precision}")
        if not self.b_along_k and shape.batch > 1 and shape.k % self.sides[2]:
            raise UnsupportedError(f"{self}: in a batch k must be a multiple of {self.sides[2]}, not that of {shape}")

    def launch(self, shape: Shape) -> Launch:
        tile_m, tile_n, _ = self.sides
        tiles = shape.batch * ceil_div(shape.m, tile_m) * ceil_div(shape.n, tile_n)
        # In the interpreter one program walks over every tile.
        return Launch(self.sides, (min(tiles, getattr(properties(), "multi_processor_count", 1)),))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        from triton.tools.tensor_descriptor import TensorDescriptor

        tile_m, tile_n, tile_k = self.sides
        (batch, m, k), n = a.shape, b.shape[2]
        rows_a = TensorDescriptor.from_tensor(a.view(batch * m, k), [tile_m, tile_k])
        b = super().prepare(a, b, c)[1].flatten(0, 1)
        rows_b = TensorDescriptor.from_tensor(b, [tile_n, tile_k] if self.b_along_k else [tile_k, tile_n])
        return rows_a, rows_b, c, batch, m, n, k

    def run(self, *operands: Any, launch: Launch) -> None:
        self._compiled = matmul_persistent[launch.grid](*operands, **self.constants(), **self.tiling(), **self.OPTIONS)
