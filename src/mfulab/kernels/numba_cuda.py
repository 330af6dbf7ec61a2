"""Base of the Numba CUDA rungs: torch tensors seen as device arrays, launched on torch's current
stream."""

import functools
from typing import Any, ClassVar

import numpy as np
import torch

from mfulab.kernels.base import Launch, MatmulKernel, Resources, Shape


class NumbaCuda(MatmulKernel):
    """`function` is a `cuda.jit` dispatcher over a[batch,m,k], b[batch,k,n], c[batch,m,n];
    simulated on a CPU."""

    family = "Numba CUDA"
    devices = ("cuda",)
    least_capability = (5, 0)
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    function: ClassVar[Any]
    side: ClassVar[
        int
    ]  # rows and columns of C that a block of `threads` computes, where no thread is an element's
    threads: ClassVar[int]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        vars(np).setdefault(
            "row_stack", np.vstack
        )  # dropped by NumPy 2.5; numba-cuda 0.30.4 asks for it

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return device_array(a), device_array(b), device_array(c)

    def launch(self, shape: Shape) -> Launch:
        return Launch((self.threads,), shape.grid(self.side, self.side))

    def run(self, *operands: Any, launch: Launch) -> None:
        self.dispatcher()[launch.grid, launch.block, current_stream()](*operands)

    def dispatcher(self) -> Any:
        """The jitted function for this precision and block."""
        return type(self).function

    def resources(self) -> Resources:
        kernel = next(iter(getattr(self.dispatcher(), "overloads", {}).values()), None)
        if kernel is None:  # in the simulator, and before the first call
            return Resources()
        return Resources(
            kernel.regs_per_thread, kernel.shared_mem_per_block, kernel.local_mem_per_thread
        )


def device_array(tensor: Any) -> Any:
    """A torch tensor's memory as Numba takes it: a device array, or in the simulator a NumPy
    view."""
    if not tensor.is_cuda:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        return FakeCUDAArray(tensor.numpy())
    from numba import cuda

    return cuda.as_cuda_array(tensor, sync=False)


def current_stream() -> Any:
    """torch's current stream for Numba; the simulator's only one is 0."""
    if torch.cuda.is_initialized():
        return _external_stream(torch.cuda.current_stream().cuda_stream)
    return 0


@functools.cache
def _external_stream(pointer: int) -> Any:
    from numba import cuda

    if pointer:
        return cuda.external_stream(pointer)
    return cuda.default_stream()
