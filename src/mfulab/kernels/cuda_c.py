"""Base of the CUDA C kernels: compiled for the current GPU, loaded once, launched on torch's
current stream."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from mfulab.kernels.base import Launch, MatmulKernel, Resources, Shape
from mfulab.kernels.devices import STATIC_SHARED_BYTES, current_stream
from mfulab.kernels.nvrtc import Compiled, compile_source

LEGACY_STREAM = 1  # cudaStreamLegacy, the explicit handle of the default stream


class LaunchError(RuntimeError):
    """CUDA error, with its name and the launch configuration."""


class CudaC(MatmulKernel):
    """Kernel `matmul(a, b, c, m, n, k)` from a file in `cuda/`. blockIdx.z is the index into the
    batch."""

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
        """Macros for compiling the source."""
        return {"REAL": self.types[self.precision]}

    def compile(self, arch: str, shape: Shape) -> Compiled:
        """Compiles the kernel for an architecture and a shape. Needs NVRTC, but no GPU."""
        return self._compile(arch, self.launch(shape))

    def _compile(self, arch: str, launch: Launch) -> Compiled:
        defines = tuple(sorted(self.defines().items()))
        return compile_source(self.source, arch, defines + launch.defines)

    def architecture(self, capability: tuple[int, int]) -> str:
        """Compiler target for a compute capability, such as `sm_90`."""
        return f"sm_{capability[0]}{capability[1]}"

    def run(self, *operands: Any, launch: Launch) -> None:
        a, _, c = operands
        m, n = c.shape[-2:]
        k = a.shape[-1]
        self.enqueue(launch, operands, *map(np.int32, (m, n, k)))

    def enqueue(self, launch: Launch, tensors: Sequence[Any], *numbers: Any) -> None:
        """Launches on torch's current stream. The arguments are the addresses of the tensors,
        followed by NumPy scalars."""
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
        """Kernel loaded on the current GPU, with the dynamic shared memory that it needs."""
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


_MODULES: list[Any] = []  # keeps modules alive, as unloading one would invalidate its kernels


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
        device = torch.cuda.current_device()
        check(driver.cuKernelSetAttribute(attribute, shared_memory_bytes, named, device))
    return kernel


def handle_of(kernel: Any) -> int:
    """The driver's CUkernel of a cuda.core kernel. Versions of cuda.core name the attribute
    differently."""
    if hasattr(kernel, "handle"):
        return int(kernel.handle)
    return int(kernel._handle)


def check(answer: tuple[Any, ...]) -> Any:
    """Returns the values of a driver call. Raises LaunchError with the error's name if it
    failed."""
    error, *values = answer
    if int(error) != 0:
        raise LaunchError(error.name)
    if len(values) == 1:
        return values[0]
    return tuple(values)
