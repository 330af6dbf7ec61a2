"""Base of the Numba CUDA kernels: torch tensors are passed as device arrays, and launches go to
torch's current stream."""

import functools
from typing import Any, ClassVar

import numpy as np
import torch

from mfulab.kernels.base import Launch, MatmulKernel, Resources, Shape


class NumbaCuda(MatmulKernel):
    """Base of kernels whose `function` is a `cuda.jit` dispatcher over a[batch,m,k], b[batch,k,n],
    c[batch,m,n]. Runs in Numba's simulator for CPU tensors."""

    family = "Numba CUDA"
    devices = ("cuda",)
    least_capability = (5, 0)
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    function: ClassVar[Any]
    # rows and columns of C per block, for kernels without one thread per element
    side: ClassVar[int]
    threads: ClassVar[int]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # removed in NumPy 2.5, but needed by numba-cuda 0.30.4
        vars(np).setdefault("row_stack", np.vstack)

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return device_array(a), device_array(b), device_array(c)

    def launch(self, shape: Shape) -> Launch:
        return Launch((self.threads,), shape.grid(self.side, self.side))

    def run(self, *operands: Any, launch: Launch) -> None:
        self.dispatcher()[launch.grid, launch.block, current_stream()](*operands)

    def dispatcher(self) -> Any:
        """Compiled function for this precision and block."""
        return type(self).function

    def resources(self) -> Resources:
        kernel = next(iter(getattr(self.dispatcher(), "overloads", {}).values()), None)
        if kernel is None:  # in the simulator, or before the first call
            return Resources()
        return Resources(
            kernel.regs_per_thread, kernel.shared_mem_per_block, kernel.local_mem_per_thread
        )


def device_array(tensor: Any) -> Any:
    """Numba device array over a torch tensor's memory; in the simulator, a view of its NumPy
    array."""
    if not tensor.is_cuda:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        return FakeCUDAArray(tensor.numpy())
    from numba import cuda

    return cuda.as_cuda_array(tensor, sync=False)


def current_stream() -> Any:
    """Numba stream for torch's current stream; 0 in the simulator."""
    if torch.cuda.is_initialized():
        return _external_stream(torch.cuda.current_stream().cuda_stream)
    return 0


@functools.cache
def _external_stream(pointer: int) -> Any:
    from numba import cuda

    if pointer:
        return cuda.external_stream(pointer)
    return cuda.default_stream()
