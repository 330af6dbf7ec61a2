"""CUDA C, grouped order: concurrent blocks share rows of A and columns of B in the L2 cache."""

from mfulab.kernels.cuda_prefetched import CudaPrefetched


class CudaGrouped(CudaPrefetched):
    """Processes tiles in groups of eight rows, column by column."""

    after = "cuda_prefetched"
    adds = "tiles in groups of eight rows: blocks that run at once share more of the L2 cache"
    group_rows = 8
