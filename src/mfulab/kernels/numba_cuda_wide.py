"""Numba CUDA, wide lanes: asynchronous copies in fp32; a thread computes 8×16 of a warp's 64×64.

A's tile is transposed on the way, by copies of single elements; B is copied four elements at a
time. The rows and columns of a thread lie in groups of four, with those of its neighbours in
between.
"""

from numba import cuda, float32, uint32

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Shape
from mfulab.kernels.numba_cuda_async import (
    commit_copies,
    copy_element,
    copy_pack,
    wait_for_all_but_one,
)
from mfulab.kernels.numba_cuda_unrolled import (
    ALIGNMENT,
    DEPTH,
    FOUR,
    ROW,
    RUN,
    TILE,
    NumbaCudaUnrolled,
)

THREADS = uint32(128)
STAGES = uint32(3)
WIDTH = uint32(16)  # columns of C per thread; it computes RUN rows
BUFFER_A = uint32(1056)  # per stage: DEPTH · ROW elements
BUFFER_B = uint32(1024)
SHARED_A = 3168
SHARED_B = 3072  # three stages
LOADS_A = uint32(8)  # elements of A that a thread copies per step …
DOWN_A = uint32(16)  # … and the rows between them: THREADS / DEPTH
LOADS_B = uint32(2)  # groups of four elements of B …
DOWN_B = uint32(4)  # … and the rows between them: THREADS · 4 / TILE
APART_A = uint32(32)  # distance of a thread's two groups of four rows
APART_B = uint32(16)  # distance of its four groups of four columns


@cuda.jit(device=True, inline="always")
def _copy_a(tile, stage, a, first, last, k, inner):
    """Starts a thread's copies of A's tile, from row `first` on; rows from `last` on are outside
    the matrix."""
    thread = uint32(cuda.threadIdx.x)
    down = thread // DEPTH
    to = stage * BUFFER_A + thread % DEPTH * ROW + down
    for i in range(LOADS_A):
        row = first + down + i * DOWN_A
        is_inside = row < last and k < inner
        copy_element(tile, to + i * DOWN_A, a, row * inner + k, is_inside)


@cuda.jit(device=True, inline="always")
def _copy_b(tile, stage, b, first, k, inner, column, columns):
    """Starts a thread's copies of B's tile. The matrix begins at row `first`, and `columns` is the
    length of its rows."""
    thread = uint32(cuda.threadIdx.x)
    to = stage * BUFFER_B + thread * FOUR
    for i in range(LOADS_B):
        down = k + i * DOWN_B
        is_inside = down < inner and column < columns
        copy_pack(tile, to + i * DOWN_B * TILE, b, (first + down) * columns + column, is_inside)


@cuda.jit(device=True, inline="always")
def _multiply_once(tile_a, tile_b, at_a, at_b, total):
    """Adds a column of A's tile times a row of B's to `total`: 128 multiply-adds for six 128-bit
    reads."""
    from_a = cuda.local.array(8, float32)
    from_b = cuda.local.array(16, float32)
    for i in range(FOUR):
        from_a[i] = tile_a[at_a + i]
        from_a[i + FOUR] = tile_a[at_a + APART_A + i]
    for j in range(FOUR):
        for i in range(FOUR):
            from_b[j * FOUR + i] = tile_b[at_b + j * APART_B + i]
    for p in range(RUN):
        for q in range(WIDTH):
            total[p * WIDTH + q] += from_a[p] * from_b[q]


@cuda.jit(device=True, inline="always")
def _multiply_four(tile_a, tile_b, at_a, at_b, total):
    """Multiplies four steps of the inner dimension, unrolled by hand because LLVM does not unroll a
    loop of this size."""
    _multiply_once(tile_a, tile_b, at_a, at_b, total)
    _multiply_once(tile_a, tile_b, at_a + ROW, at_b + TILE, total)
    _multiply_once(tile_a, tile_b, at_a + uint32(2) * ROW, at_b + uint32(2) * TILE, total)
    _multiply_once(tile_a, tile_b, at_a + uint32(3) * ROW, at_b + uint32(3) * TILE, total)


@cuda.jit(device=True, inline="always")
def _write_row(c, batch, rows, columns, row, left, total, first):
    """Writes a row of a thread's part of C, masked at the edges. Its sums start at index `first` of
    `total`."""
    for q in range(WIDTH):
        column = left + q % FOUR + q // FOUR * APART_B
        if row < rows and column < columns:
            c[(batch * rows + row) * columns + column] = total[first + q]


@cuda.jit(device=True, inline="always")
def _write(c, batch, rows, columns, top, left, total):
    """Writes a thread's 8×16 of C. Unrolled by hand, because a loop that the compiler does not
    unroll keeps all sums in memory."""
    below = top + APART_A
    _write_row(c, batch, rows, columns, top, left, total, uint32(0))
    _write_row(c, batch, rows, columns, top + uint32(1), left, total, WIDTH)
    _write_row(c, batch, rows, columns, top + uint32(2), left, total, uint32(2) * WIDTH)
    _write_row(c, batch, rows, columns, top + uint32(3), left, total, uint32(3) * WIDTH)
    _write_row(c, batch, rows, columns, below, left, total, uint32(4) * WIDTH)
    _write_row(c, batch, rows, columns, below + uint32(1), left, total, uint32(5) * WIDTH)
    _write_row(c, batch, rows, columns, below + uint32(2), left, total, uint32(6) * WIDTH)
    _write_row(c, batch, rows, columns, below + uint32(3), left, total, uint32(7) * WIDTH)


@cuda.jit
def _matmul(a, b, c, rows, columns, inner):
    tile_a = cuda.shared.array(SHARED_A, float32, alignment=ALIGNMENT)
    tile_b = cuda.shared.array(SHARED_B, float32, alignment=ALIGNMENT)
    total = cuda.local.array(128, float32)
    for i in range(uint32(128)):
        total[i] = float32(0)
    thread = uint32(cuda.threadIdx.x)
    batch = uint32(cuda.blockIdx.z)
    top = uint32(cuda.blockIdx.y) * TILE
    left = uint32(cuda.blockIdx.x) * TILE
    warp = thread // uint32(32)
    lane = thread % uint32(32)
    # 8×4 lanes: l and l^1 share rows, l and l^2 share columns, so that each is read in two
    # requests.
    lane_row = (lane >> uint32(1) & uint32(1)) | (lane >> uint32(3) & uint32(3)) << uint32(1)
    lane_column = (lane & uint32(1)) | (lane >> uint32(2) & uint32(1)) << uint32(1)
    y = warp // uint32(2) * uint32(64) + lane_row * FOUR
    x = warp % uint32(2) * uint32(64) + lane_column * FOUR
    first_a = batch * rows + top
    last_a = batch * rows + rows
    first_b = batch * inner
    column = left + thread % uint32(32) * FOUR
    k_a = thread % DEPTH
    k_b = thread // uint32(32)
    for stage in range(STAGES - uint32(1)):
        _copy_a(tile_a, stage, a, first_a, last_a, k_a, inner)
        _copy_b(tile_b, stage, b, first_b, k_b, inner, column, columns)
        commit_copies()
        k_a = k_a + DEPTH
        k_b = k_b + DEPTH
    here = uint32(0)
    coming = STAGES - uint32(1)
    done = uint32(0)
    while done < inner:
        wait_for_all_but_one()
        cuda.syncthreads()
        # Safe, because the stage that is filled now was last read before this barrier.
        _copy_a(tile_a, coming, a, first_a, last_a, k_a, inner)
        _copy_b(tile_b, coming, b, first_b, k_b, inner, column, columns)
        commit_copies()
        at_a = here * BUFFER_A + y
        at_b = here * BUFFER_B + x
        _multiply_four(tile_a, tile_b, at_a, at_b, total)
        _multiply_four(tile_a, tile_b, at_a + FOUR * ROW, at_b + FOUR * TILE, total)
        k_a = k_a + DEPTH
        k_b = k_b + DEPTH
        done = done + DEPTH
        coming = here
        here = here + uint32(1) if here + uint32(1) < STAGES else uint32(0)
    _write(c, batch, rows, columns, top + y, left + x, total)


class NumbaCudaWide(NumbaCudaUnrolled):
    """Needs rows of B that are multiples of 16 bytes."""

    after = "numba_cuda_unrolled"
    adds = "cp.async by inline PTX, three stages; 8×16 elements a thread: six reads of 128 bits for 128 multiply-adds"
    least_capability = (8, 0)
    function = _matmul
    threads = int(THREADS)

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape.n % int(FOUR):
            raise UnsupportedError(
                Said(
                    "rows_of_16_bytes",
                    kernel=str(self),
                    shape=str(shape),
                    precision=self.precision,
                )
            )
