"""CUDA C for Hopper, ping-pong: a tile each warpgroup, so that one's products hide the other's stores."""

from mfulab.kernels.cuda_hopper_hilbert import CudaHopperHilbert


class CudaHopperPingpong(CudaHopperHilbert):
    """Tiles of 64×256; a cluster of two blocks shares B."""

    after, adds = "cuda_hopper_hilbert", "ping-pong: each warpgroup multiplies while the other stores its own tile"
    source = "hopper_pingpong.cu"
    tile_rows = 64
