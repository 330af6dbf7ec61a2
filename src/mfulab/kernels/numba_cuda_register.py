"""Numba CUDA, register tile: a block computes 128×128 of C, and each thread 8×8 of it in local
arrays."""

from numba import cuda, float32

from mfulab.kernels.numba_cuda import NumbaCuda

TILE = 128
DEPTH = 8
RUN = 8
COLUMNS = TILE // RUN
THREADS = COLUMNS * COLUMNS
PADDED = TILE + 4  # so that stores of the transposed tile use different banks


@cuda.jit
def _matmul(a, b, c):
    tile_a = cuda.shared.array((DEPTH, PADDED), float32)
    tile_b = cuda.shared.array((DEPTH, TILE), float32)
    total = cuda.local.array((RUN, RUN), float32)
    from_a = cuda.local.array(RUN, float32)
    from_b = cuda.local.array(RUN, float32)
    thread = cuda.threadIdx.x
    batch = cuda.blockIdx.z
    top = cuda.blockIdx.y * TILE
    left = cuda.blockIdx.x * TILE
    x = thread % COLUMNS * RUN
    y = thread // COLUMNS * RUN
    rows = a.shape[1]
    inner = a.shape[2]
    columns = b.shape[2]
    for p in range(RUN):
        for q in range(RUN):
            total[p, q] = float32(0)
    for start in range(0, inner, DEPTH):
        for load in range(TILE * DEPTH // THREADS):
            i = thread + load * THREADS
            row = i // DEPTH
            k = i % DEPTH
            inside = top + row < rows and start + k < inner
            tile_a[k, row] = a[batch, top + row, start + k] if inside else float32(0)
        for load in range(TILE * DEPTH // THREADS):
            i = thread + load * THREADS
            k = i // TILE
            column = i % TILE
            inside = start + k < inner and left + column < columns
            tile_b[k, column] = b[batch, start + k, left + column] if inside else float32(0)
        cuda.syncthreads()
        for k in range(DEPTH):
            for r in range(RUN):
                from_a[r] = tile_a[k, y + r]
                from_b[r] = tile_b[k, x + r]
            for p in range(RUN):
                for q in range(RUN):
                    total[p, q] += from_a[p] * from_b[q]
        cuda.syncthreads()
    for p in range(RUN):
        for q in range(RUN):
            if top + y + p < rows and left + x + q < columns:
                c[batch, top + y + p, left + x + q] = total[p, q]


class NumbaCudaRegister(NumbaCuda):
    """Local arrays become registers only because every index into them is constant once the loops
    are unrolled."""

    after = "numba_cuda_shared"
    adds = "8×8 elements a thread: 16 shared-memory reads for 64 multiply-adds"
    function = _matmul
    side = TILE
    threads = THREADS
