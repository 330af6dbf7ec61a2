"""CUDA C for Hopper, Hilbert order: tiles that are computed at the same time form a nearly square
patch of C."""

from typing import Any

import numpy as np
import torch

from mfulab.kernels.base import ceil_div
from mfulab.kernels.cuda_hopper_cluster import CudaHopperCluster
from mfulab.kernels.hopper import TILE_M, TILE_N


class CudaHopperHilbert(CudaHopperCluster):
    """Reads the order of tiles from a table on the device. Creating the table counts only in the
    end-to-end time."""

    after = "cuda_hopper_cluster"
    adds = "tiles along a Hilbert curve: the L2 cache serves most loads, whatever the size"
    ordered = True

    def order(self, c: Any) -> Any:
        _, m, n = c.shape
        down = ceil_div(m, self.cluster * TILE_M)
        across = ceil_div(n, TILE_N)
        return torch.from_numpy(hilbert_order(down, across)).to(c.device)


def hilbert_order(rows: int, columns: int) -> np.ndarray:
    """Cells of a grid as int32 (row << 16 | column), in the order of a Hilbert curve over a square
    that contains the grid."""
    y, x = map(np.ravel, np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"))
    cells = (y << 16 | x).astype(np.int32)
    distance = np.zeros(len(cells), np.int64)
    side = 1 << max(rows - 1, columns - 1, 1).bit_length() >> 1
    while side:
        right = (x & side) > 0
        down = (y & side) > 0
        distance += side * side * ((3 * right) ^ down)
        # Rotates the quadrant so that the curve is continuous at its corners.
        turned = ~down & right
        x = np.where(turned, side - 1 - x, x) & side - 1
        y = np.where(turned, side - 1 - y, y) & side - 1
        x, y = np.where(down, x, y), np.where(down, y, x)
        side >>= 1
    return cells[np.argsort(distance, kind="stable")]
