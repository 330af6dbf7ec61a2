"""CUDA C for Hopper, fp8 with deferred results: products take half as long, so that stores weigh
twice as much."""

from mfulab.kernels.cuda_hopper_fp8 import CudaHopperFp8


class CudaHopperFp8Deferred(CudaHopperFp8):
    """e4m3 in, bf16 out, as `cuda_hopper_fp8`; results leave as `cuda_hopper_deferred`'s do."""

    after = "cuda_hopper_fp8"
    adds = "fp8 whose results leave while the next tile's first products run"
    deferred = True
