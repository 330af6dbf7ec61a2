"""CUDA C, prefetched fragments: reads the next values from shared memory while multiplying the
current ones."""

from mfulab.kernels.cuda_tiled import AsyncTiles


class CudaPrefetched(AsyncTiles):
    """Alternates between two sets of registers, so BK must be even. The loads of four elements
    already require that."""

    after = "cuda_async_copies"
    adds = "the next fragments are read while these are multiplied, also across the barrier"
    source = "prefetched.cu"
