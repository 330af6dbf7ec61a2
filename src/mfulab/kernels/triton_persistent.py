"""Triton, persistent: one program per SM processes tile after tile, fed by the bulk copy engine."""

from typing import Any

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import FORMATS
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, Shape, ceil_div
from mfulab.kernels.devices import HOPPER, generation, properties
from mfulab.kernels.triton_kernels import TritonKernel, matmul_persistent

# Without tensor cores, the compiler keeps both operands' tiles in registers.
FP32_SIDES = (64, 128, 16)
CONSUMER_BLACKWELL = (12, 0)
NARROW = 128  # maximum columns of a tile on it


class TritonPersistent(TritonKernel):
    """Needs rows that are multiples of 16 bytes for the tensor descriptors. No tile of B may extend
    into the next matrix."""

    after = "triton_autotuned"
    adds = "programs that stay, one an SM, and whole tiles by the bulk copy engine"
    # Before Hopper, descriptors are lowered to loads of single elements.
    least_capability = HOPPER

    @property
    def sides(self) -> tuple[int, ...]:
        """Same tile as the plain kernel, but smaller if the descriptors' addresses need
        registers."""
        sides = super().sides
        if self.block is not None:
            return sides
        if self.precision == "fp32":
            return FP32_SIDES
        if generation() >= CONSUMER_BLACKWELL:
            return (sides[0], min(sides[1], NARROW), sides[2])
        return sides

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        item = FORMATS[self.precision].bytes
        rows = [shape.k * item]
        if not self.b_along_k:
            rows.append(shape.n * item)
        if any(row % 16 for row in rows):
            raise UnsupportedError(
                Said(
                    "rows_of_16_bytes", kernel=str(self), shape=str(shape), precision=self.precision
                )
            )
        tile_k = self.sides[2]
        if not self.b_along_k and shape.batch > 1 and shape.k % tile_k:
            raise UnsupportedError(
                Said("batch_multiple", kernel=str(self), side=str(tile_k), shape=str(shape))
            )

    def launch(self, shape: Shape) -> Launch:
        tile_m, tile_n, _ = self.sides
        tiles = shape.batch * ceil_div(shape.m, tile_m) * ceil_div(shape.n, tile_n)
        # In the interpreter, one program processes all tiles.
        sms = getattr(properties(), "multi_processor_count", 1)
        return Launch(self.sides, (min(tiles, sms),))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        from triton.tools.tensor_descriptor import TensorDescriptor

        tile_m, tile_n, tile_k = self.sides
        batch, m, k = a.shape
        n = b.shape[2]
        rows_a = TensorDescriptor.from_tensor(a.view(batch * m, k), [tile_m, tile_k])
        b = super().prepare(a, b, c)[1].flatten(0, 1)
        tile_b = [tile_k, tile_n]
        if self.b_along_k:
            tile_b = [tile_n, tile_k]
        rows_b = TensorDescriptor.from_tensor(b, tile_b)
        return rows_a, rows_b, c, batch, m, n, k

    def run(self, *operands: Any, launch: Launch) -> None:
        self._compiled = matmul_persistent[launch.grid](
            *operands, **self.constants(), **self.tiling(), **self.OPTIONS
        )
