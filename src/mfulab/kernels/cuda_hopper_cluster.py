"""CUDA C for Hopper, clusters: two blocks each load half of the B tile that they share."""

from mfulab.kernels.cuda_hopper_stores import CudaHopperStores


class CudaHopperCluster(CudaHopperStores):
    """Computes 256×256 of C per cluster of two blocks."""

    after = "cuda_hopper_stores"
    adds = "clusters of two blocks: each loads half of B's tile for both by multicast"
    cluster = 2
