"""CUDA C for Hopper, deferred results: a tile's leave while the next tile's products run."""

from mfulab.kernels.cuda_hopper_hilbert import CudaHopperHilbert


class CudaHopperDeferred(CudaHopperHilbert):
    """Rounded results wait in 64 registers beside the 128 of the next tile's sums. Each of its first
    four steps sends a box of 64 columns on its way."""

    after = "cuda_hopper_hilbert"
    adds = "results wait in registers and leave while the next tile's first products run"
    deferred = True
