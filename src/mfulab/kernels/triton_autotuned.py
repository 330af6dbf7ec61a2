"""Triton, autotuned: the fastest tile, warps and stages of a list, found at the first call."""

import functools
from typing import Any

import triton

from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Launch, Shape
from mfulab.kernels.devices import require_grid
from mfulab.kernels.triton_kernels import TritonKernel, matmul_tiles

# (tile_m, tile_n, tile_k in bytes of an operand's row, warps, stages)
CANDIDATES = [
    (128, 256, 128, 8, 3),
    (128, 256, 128, 8, 4),
    (128, 128, 128, 8, 4),
    (128, 128, 128, 4, 4),
    (256, 128, 128, 8, 3),
    (128, 64, 128, 4, 4),
    (64, 128, 128, 4, 4),
    (64, 64, 64, 4, 5),
    (16, 128, 256, 4, 4),
]


class TritonAutotuned(TritonKernel):
    """Tuned anew for each shape; the time that takes is in the first call's."""

    after = "triton_plain"
    adds = "tile, warps and stages tuned for this shape on this device"
    block_sides = 0

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        require_grid(f"{self}: {shape}", (1, shape.batch))

    def launch(self, shape: Shape) -> Launch:
        """Tile and grid of the winner; empty before the first call has found it."""
        best = getattr(autotuned(FORMATS[self.precision].bytes), "best_config", None)
        if best is None:
            return Launch()
        sides = tuple(best.kwargs[side] for side in ("tile_m", "tile_n", "tile_k"))
        return Launch(sides, _grid({**shape._asdict(), **best.kwargs}))

    def run(self, *operands: Any, launch: Launch) -> None:
        tuned = autotuned(FORMATS[self.precision].bytes)
        self._compiled = tuned[_grid](
            *self.arguments(*operands), **self.constants(), **self.OPTIONS
        )


def _grid(choice: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(choice["m"], choice["tile_m"]) * triton.cdiv(
        choice["n"], choice["tile_n"]
    ), choice["batch"]


@functools.cache
def autotuned(item_bytes: int) -> Any:
    """The plain kernel with its candidates for elements of so many bytes."""
    configs = [
        triton.Config(
            {"tile_m": m, "tile_n": n, "tile_k": max(16, k // item_bytes)},
            num_warps=warps,
            num_stages=stages,
        )
        for m, n, k, warps, stages in CANDIDATES
    ]
    return triton.autotune(configs, key=["batch", "m", "n", "k"])(matmul_tiles)
