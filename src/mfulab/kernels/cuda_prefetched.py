"""CUDA C, prefetched fragments: the next values come from shared memory while these are multiplied."""

from mfulab.kernels.cuda_async_copies import CudaAsyncCopies


class CudaPrefetched(CudaAsyncCopies):
    """BK must be even: fragments alternate between two sets of registers."""

    rung, adds = 10, "the next fragments are read while these are multiplied, also across the barrier"
    source = "prefetched.cu"
    group_rows = 1

    def defines(self) -> dict[str, str]:
        return super().defines() | {"GROUP": str(self.group_rows)}
