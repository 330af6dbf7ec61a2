"""CUDA C, vectorised: 128-bit loads and stores; A's tile is transposed on its way to shared
memory."""

from mfulab.kernels.cuda_tiled import Quads


class CudaVectorised(Quads):
    """Reads elements one by one if the row length is not a multiple of four."""

    after = "cuda_register_2d"
    adds = "128-bit loads from device and shared memory"
    source = "vectorised.cu"
    tile = (128, 128, 8)
