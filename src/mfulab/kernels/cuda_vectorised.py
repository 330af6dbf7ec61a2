"""CUDA C, vectorised: 128-bit loads and stores, A's tile transposed on its way to shared memory."""

from mfulab.kernels.cuda_tiled import Quads


class CudaVectorised(Quads):
    """Rows whose length is no multiple of four elements are read one by one."""

    after = "cuda_register_2d"
    adds = "128-bit loads from device and shared memory"
    source = "vectorised.cu"
    tile = (128, 128, 8)
