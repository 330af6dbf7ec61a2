"""CUDA C for Hopper, clusters: two blocks load half of their common B each, for both."""

from mfulab.kernels.hopper import HopperStores


class CudaHopperCluster(HopperStores):
    """A cluster of two blocks computes 256×256 of C."""

    after, adds = "cuda_hopper_stores", "clusters of two blocks: each loads half of B's tile for both by multicast"
    cluster = 2
