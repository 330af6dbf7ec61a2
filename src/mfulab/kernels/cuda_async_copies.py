"""CUDA C, asynchronous copies: tiles on their way to shared memory pass the registers by, three
pairs deep."""

from mfulab.kernels.cuda_tiled import AsyncTiles


class CudaAsyncCopies(AsyncTiles):
    """Copies A's elements one by one, since its tile is transposed on the way; B's in fours."""

    after = "cuda_warp_tile"
    adds = "asynchronous copies, three tiles deep; pointers and masks computed once"
    source = "async_copies.cu"
