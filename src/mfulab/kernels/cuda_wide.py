"""CUDA C, wide lanes: each lane computes 8×16 of a warp's 64×64, so that 128 multiply-adds need six
128-bit reads."""

from mfulab.kernels.cuda_grouped import CudaGrouped


class CudaWide(CudaGrouped):
    """Blocks of 128×256 in steps of 16: one block per SM, and half as many barriers and copies per
    multiply-add."""

    after = "cuda_grouped"
    adds = "8×16 elements a lane, 128×256 a block, steps of 16: half the barriers and fewer reads"
    tile = (128, 256, 16)
    warp = (64, 64)
    run_n = 16
