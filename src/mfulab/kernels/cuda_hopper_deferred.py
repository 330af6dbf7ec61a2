"""CUDA C for Hopper, deferred stores: a tile is stored while the next tile is multiplied."""

from mfulab.kernels.cuda_hopper_hilbert import CudaHopperHilbert


class CudaHopperDeferred(CudaHopperHilbert):
    """Keeps rounded results in 64 registers, in addition to 128 for the next tile's sums. Each of
    the next tile's first four steps stores a box of 64 columns."""

    after = "cuda_hopper_hilbert"
    adds = "results wait in registers and leave while the next tile's first products run"
    deferred = True
