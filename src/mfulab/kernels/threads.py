"""Gives every CPU library that multiplies the same number of threads."""

import numba
import threadpoolctl
import torch


def use_threads(threads: int) -> None:
    """For torch, Numba and NumPy's BLAS, for the rest of this process."""
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    threadpoolctl.threadpool_limits(threads)
