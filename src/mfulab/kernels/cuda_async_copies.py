"""CUDA C with asynchronous copies: tiles go to shared memory without passing through registers, in
three stages."""

from mfulab.kernels.cuda_tiled import AsyncTiles


class CudaAsyncCopies(AsyncTiles):
    """Copies A element by element, because its tile is transposed on the way, and B four elements
    at a time."""

    after = "cuda_warp_tile"
    adds = "asynchronous copies, three tiles deep; pointers and masks computed once"
    source = "async_copies.cu"
