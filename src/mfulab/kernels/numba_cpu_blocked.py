"""Numba on the CPU, blocked, parallel, vectorised: 4×4 of A stay in registers while rows of B stream into rows of C."""

from numba import njit, prange

from mfulab.kernels.cpu import CpuKernel

DEPTH = 64  # of a block of B, which stays in the L2 cache: DEPTH × columns


@njit(fastmath={"contract"})
def _four_rows_four_deep(a, b, c, row, k, first, last):
    """c[row:row+4, first:last] += a[row:row+4, k:k+4] @ b[k:k+4, first:last]: 16 multiply-adds, 8 loads, 4 stores."""
    a00, a01, a02, a03 = a[row, k], a[row, k + 1], a[row, k + 2], a[row, k + 3]
    a10, a11, a12, a13 = a[row + 1, k], a[row + 1, k + 1], a[row + 1, k + 2], a[row + 1, k + 3]
    a20, a21, a22, a23 = a[row + 2, k], a[row + 2, k + 1], a[row + 2, k + 2], a[row + 2, k + 3]
    a30, a31, a32, a33 = a[row + 3, k], a[row + 3, k + 1], a[row + 3, k + 2], a[row + 3, k + 3]
    b0, b1, b2, b3 = b[k, first:last], b[k + 1, first:last], b[k + 2, first:last], b[k + 3, first:last]
    c0, c1, c2, c3 = c[row, first:last], c[row + 1, first:last], c[row + 2, first:last], c[row + 3, first:last]
    for j in range(last - first):
        x0, x1, x2, x3 = b0[j], b1[j], b2[j], b3[j]
        c0[j] += a00 * x0 + a01 * x1 + a02 * x2 + a03 * x3
        c1[j] += a10 * x0 + a11 * x1 + a12 * x2 + a13 * x3
        c2[j] += a20 * x0 + a21 * x1 + a22 * x2 + a23 * x3
        c3[j] += a30 * x0 + a31 * x1 + a32 * x2 + a33 * x3


@njit(fastmath={"contract"})
def _edge(a, b, c, top, bottom, k_first, k_last, first, last):
    """The same for what is left over beside the fours."""
    for row in range(top, bottom):
        c_row = c[row, first:last]
        for k in range(k_first, k_last):
            value = a[row, k]
            b_row = b[k, first:last]
            for j in range(last - first):
                c_row[j] += value * b_row[j]


@njit(fastmath={"contract"})
def _rows(a, b, c, top, bottom, columns):
    """All of c[top:bottom], block of B after block of B."""
    c[top:bottom] = 0
    fours = bottom - (bottom - top) % 4
    for k_first in range(0, a.shape[1], DEPTH):
        k_last = min(k_first + DEPTH, a.shape[1])
        k_fours = k_last - (k_last - k_first) % 4
        for first in range(0, b.shape[1], columns):
            last = min(first + columns, b.shape[1])
            for row in range(top, fours, 4):
                for k in range(k_first, k_fours, 4):
                    _four_rows_four_deep(a, b, c, row, k, first, last)
            _edge(a, b, c, top, fours, k_fours, k_last, first, last)
            _edge(a, b, c, fours, bottom, k_first, k_last, first, last)


@njit(parallel=True, fastmath={"contract"})
def _matmul(a, b, c, rows, columns):
    tasks = (c.shape[1] + rows - 1) // rows
    for task in prange(c.shape[0] * tasks):
        batch, top = task // tasks, task % tasks * rows
        _rows(a[batch], b[batch], c[batch], top, min(top + rows, c.shape[1]), columns)


class NumbaCpuBlocked(CpuKernel):
    """All allowed threads. `block` is (rows of C a task, columns of C)."""

    after = "numba_cpu_reordered"
    adds = "blocks that fit the caches, 4×4 register tiles, every core"
    function = _matmul
    block_sides = 2
    tile = (32, 1024)
