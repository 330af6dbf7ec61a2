"""CUDA C, asynchronous copies: tiles on their way to shared memory pass the registers by, three pairs deep."""

from mfulab.kernels.cuda_warp_tile import CudaWarpTile


class CudaAsyncCopies(CudaWarpTile):
    """A's elements are copied one by one, since its tile is transposed on the way; B's in fours."""

    rung, adds = 9, "asynchronous copies, three tiles deep; pointers and masks computed once"
    source = "async_copies.cu"
    tile = (128, 128, 8)
    stages = 3
    least_capability = (8, 0)
