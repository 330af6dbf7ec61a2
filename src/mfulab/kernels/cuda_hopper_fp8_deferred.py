"""CUDA C for Hopper in fp8 with deferred stores. Products take half as long as in 16 bits, so
stores weigh twice as much."""

from mfulab.kernels.cuda_hopper_fp8 import CudaHopperFp8


class CudaHopperFp8Deferred(CudaHopperFp8):
    """Combines `cuda_hopper_fp8` with the deferred stores of `cuda_hopper_deferred`. e4m3 in, bf16
    out."""

    after = "cuda_hopper_fp8"
    adds = "fp8 whose results leave while the next tile's first products run"
    deferred = True
