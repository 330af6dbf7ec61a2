"""CUDA C for Hopper, clusters: two blocks load half of their common B each, for both."""

from mfulab.kernels.cuda_hopper_stores import CudaHopperStores


class CudaHopperCluster(CudaHopperStores):
    """A cluster of two blocks computes 256×256 of C."""

    after = "cuda_hopper_stores"
    adds = "clusters of two blocks: each loads half of B's tile for both by multicast"
    cluster = 2
