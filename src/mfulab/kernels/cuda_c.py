"""Base of the CUDA C rungs: compiled for the GPU at hand, loaded once, launched on torch's current
stream."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from mfulab.kernels.base import Launch, MatmulKernel, Resources, Shape
from mfulab.kernels.devices import STATIC_SHARED_BYTES, current_stream
from mfulab.kernels.nvrtc import Compiled, compile_source

LEGACY_STREAM = 1  # cudaStreamLegacy, the default stream by a handle of its own


class LaunchError(RuntimeError):
    """A CUDA error by its name, with the launch configuration that met it."""


class CudaC(MatmulKernel):
    """A kernel `matmul(a, b, c, m, n, k)` in a file of `cuda/`; blockIdx.z counts the batch."""

    family = "CUDA C"
    devices = ("cuda",)
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp64")
    source: ClassVar[str]
    entry: ClassVar[str] = "matmul"
    least_capability: ClassVar[tuple[int, int]] = (7, 0)
    types: ClassVar[Mapping[str, str]] = {"fp32": "float", "fp64": "double"}

    def __init__(self, precision: str, block: Sequence[int] | None = None):
        super().__init__(precision, block)
        self._resources = Resources()
        self._loaded: dict[Launch, Any] = {}

    def defines(self) -> dict[str, str]:
        """Macros that the source is compiled with."""
        return {"REAL": self.types[self.precision]}

    def compile(self, arch: str, shape: Shape) -> Compiled:
        """Machine code for an architecture and a shape, on any machine that has NVRTC."""
        return self._compile(arch, self.launch(shape))

    def _compile(self, arch: str, launch: Launch) -> Compiled:
        return compile_source(
            self.source, arch, tuple(sorted(self.defines().items())) + launch.defines
        )

    def architecture(self, capability: tuple[int, int]) -> str:
        """The compiler's target for a compute capability."""
        return f"sm_{capability[0]}{capability[1]}"

    def run(self, *operands: Any, launch: Launch) -> None:
        a, _, c = operands
        self.enqueue(launch, operands, *map(np.int32, (c.shape[-2], c.shape[-1], a.shape[-1])))

    def enqueue(self, launch: Launch, tensors: Sequence[Any], *numbers: Any) -> None:
        """Launches on torch's current stream, with the tensors' addresses and numbers of NumPy's
        types."""
        from cuda.core import LaunchConfig
        from cuda.core import launch as cuda_launch

        config = LaunchConfig(
            grid=launch.grid, block=launch.block, shmem_size=launch.shared_memory_bytes
        )
        try:
            addresses = (tensor.data_ptr() for tensor in tensors)
            cuda_launch(_TorchStream(), config, self.loaded(launch), *addresses, *numbers)
        except Exception as error:
            raise LaunchError(f"{error} ({self.source}, {launch})") from error

    def loaded(self, launch: Launch) -> Any:
        """The kernel on the current GPU, allowed the dynamic shared memory that it needs."""
        if launch not in self._loaded:
            compiled = self._compile(self.architecture(torch.cuda.get_device_capability()), launch)
            self._resources = compiled.resources
            self._loaded[launch] = _load(compiled, self.entry, launch.shared_memory_bytes)
        return self._loaded[launch]

    def resources(self) -> Resources:
        return self._resources


class _TorchStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, current_stream() or LEGACY_STREAM


_MODULES: list[Any] = []  # a module that is unloaded takes its kernels with it


def _load(compiled: Compiled, entry: str, shared_memory_bytes: int) -> Any:
    from cuda.bindings import driver
    from cuda.core import Device, ObjectCode

    torch.cuda.init()
    Device(torch.cuda.current_device()).set_current()
    module = ObjectCode.from_cubin(compiled.code)
    _MODULES.append(module)
    kernel = module.get_kernel(entry)
    if shared_memory_bytes > STATIC_SHARED_BYTES:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        named = driver.CUkernel(handle_of(kernel))
        check(
            driver.cuKernelSetAttribute(
                attribute, shared_memory_bytes, named, torch.cuda.current_device()
            )
        )
    return kernel


def handle_of(kernel: Any) -> int:
    """The driver's CUkernel behind a kernel of cuda.core, which has had it by two names."""
    return int(kernel.handle if hasattr(kernel, "handle") else kernel._handle)


def check(answer: tuple[Any, ...]) -> Any:
    """The values of a driver call; raises LaunchError with the error's name."""
    error, *values = answer
    if int(error) != 0:
        raise LaunchError(error.name)
    return values[0] if len(values) == 1 else tuple(values)
