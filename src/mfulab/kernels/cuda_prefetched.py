"""CUDA C, prefetched fragments: the next values come from shared memory while these are
multiplied."""

from mfulab.kernels.cuda_tiled import AsyncTiles


class CudaPrefetched(AsyncTiles):
    """Fragments alternate between two sets of registers, so BK must be even, as the loads of four
    demand anyway."""

    after = "cuda_async_copies"
    adds = "the next fragments are read while these are multiplied, also across the barrier"
    source = "prefetched.cu"
