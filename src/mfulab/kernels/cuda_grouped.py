"""CUDA C, grouped order: blocks that run at once share rows of A and columns of B in the L2
cache."""

from mfulab.kernels.cuda_prefetched import CudaPrefetched


class CudaGrouped(CudaPrefetched):
    """Eight rows of tiles are walked together, column by column."""

    after = "cuda_prefetched"
    adds = "tiles in groups of eight rows: blocks that run at once share more of the L2 cache"
    group_rows = 8
