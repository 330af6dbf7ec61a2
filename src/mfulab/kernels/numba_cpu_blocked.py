"""Numba on the CPU, blocked, parallel and vectorised: 4×4 values of A stay in registers while rows
of B are added to rows of C."""

import numpy as np
from numba import njit, prange

from mfulab.kernels.base import CpuKernel

DEPTH = 64  # rows of a block of B; the block, DEPTH × columns, stays in the L2 cache
# elements between rows of a tile: rows that are (nearly) 4 KB apart slow a matmul of 1024 or 1000
# down by a tenth or more
PADDING = 64


@njit(fastmath={"contract"})
def _four_rows_four_deep(a, b, tile, row, top, k, first, width):
    """Computes tile[row:row+4] += a[top+row:top+row+4, k:k+4] @ b[k:k+4, first:first+width]. 16
    FMAs per 8 loads and 4 stores."""
    own = top + row
    last = first + width
    a00 = a[own, k]
    a01 = a[own, k + 1]
    a02 = a[own, k + 2]
    a03 = a[own, k + 3]
    a10 = a[own + 1, k]
    a11 = a[own + 1, k + 1]
    a12 = a[own + 1, k + 2]
    a13 = a[own + 1, k + 3]
    a20 = a[own + 2, k]
    a21 = a[own + 2, k + 1]
    a22 = a[own + 2, k + 2]
    a23 = a[own + 2, k + 3]
    a30 = a[own + 3, k]
    a31 = a[own + 3, k + 1]
    a32 = a[own + 3, k + 2]
    a33 = a[own + 3, k + 3]
    b0 = b[k, first:last]
    b1 = b[k + 1, first:last]
    b2 = b[k + 2, first:last]
    b3 = b[k + 3, first:last]
    c0 = tile[row]
    c1 = tile[row + 1]
    c2 = tile[row + 2]
    c3 = tile[row + 3]
    for j in range(width):
        x0 = b0[j]
        x1 = b1[j]
        x2 = b2[j]
        x3 = b3[j]
        c0[j] += a00 * x0 + a01 * x1 + a02 * x2 + a03 * x3
        c1[j] += a10 * x0 + a11 * x1 + a12 * x2 + a13 * x3
        c2[j] += a20 * x0 + a21 * x1 + a22 * x2 + a23 * x3
        c3[j] += a30 * x0 + a31 * x1 + a32 * x2 + a33 * x3


@njit(fastmath={"contract"})
def _edge(a, b, tile, rows, top, depth, first, width):
    """Adds the remainder of a block whose sides are not multiples of four. `rows` and `depth` are
    (first, end)."""
    for row in range(*rows):
        c_row = tile[row]
        for k in range(*depth):
            value = a[top + row, k]
            b_row = b[k, first : first + width]
            for j in range(width):
                c_row[j] += value * b_row[j]


@njit(fastmath={"contract"})
def _fill(tile, a, b, top, rows, first, width):
    tile[:] = 0
    fours = rows - rows % 4
    for k_first in range(0, a.shape[1], DEPTH):
        k_last = min(k_first + DEPTH, a.shape[1])
        k_fours = k_last - (k_last - k_first) % 4
        for row in range(0, fours, 4):
            for k in range(k_first, k_fours, 4):
                _four_rows_four_deep(a, b, tile, row, top, k, first, width)
        _edge(a, b, tile, (0, fours), top, (k_fours, k_last), first, width)
        _edge(a, b, tile, (fours, rows), top, (k_first, k_last), first, width)


@njit(parallel=True, fastmath={"contract"})
def _matmul(a, b, c, rows, columns):
    tasks = (c.shape[1] + rows - 1) // rows
    columns = min(columns, c.shape[2])
    stride = (columns + 255) // 256 * 256 + PADDING
    for task in prange(c.shape[0] * tasks):
        batch = task // tasks
        top = task % tasks * rows
        height = min(rows, c.shape[1] - top)
        tile = np.empty((rows, stride), c.dtype)
        for first in range(0, c.shape[2], columns):
            width = min(columns, c.shape[2] - first)
            _fill(tile, a[batch], b[batch], top, height, first, width)
            c[batch, top : top + height, first : first + width] = tile[:height, :width]


class NumbaCpuBlocked(CpuKernel):
    """Blocked loops on all allowed threads. `block` is (rows of C per task, columns of C)."""

    after = "numba_cpu_reordered"
    adds = "blocks that fit the caches, 4×4 register tiles, every core"
    function = _matmul
    block_sides = 2
    tile = (32, 1024)
