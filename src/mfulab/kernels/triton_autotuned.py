"""Triton, autotuned: the fastest of a list of tiles, warps and stages, found in the first call."""

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
    (64, 64, 64, 8, 3),  # the only one that does not spill in fp16 on Turing
    (16, 128, 256, 4, 4),
]


class TritonAutotuned(TritonKernel):
    """Tunes for each shape. The tuning time is part of the first call."""

    after = "triton_plain"
    adds = "tile, warps and stages tuned for this shape on this device"
    block_sides = 0

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        require_grid(f"{self}: {shape}", (1, shape.batch))

    def launch(self, shape: Shape) -> Launch:
        """Tile and grid of the fastest configuration. Empty before the first call."""
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
    """The plain kernel with autotuning over the candidates, for elements of `item_bytes`."""
    configs = [
        triton.Config(
            {"tile_m": m, "tile_n": n, "tile_k": max(16, k // item_bytes)},
            num_warps=warps,
            num_stages=stages,
        )
        for m, n, k, warps, stages in CANDIDATES
    ]
    return triton.autotune(configs, key=["batch", "m", "n", "k"])(matmul_tiles)
