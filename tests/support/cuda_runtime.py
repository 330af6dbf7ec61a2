"""Emulates CUDA's runtime with host memory, and a call that can fail."""

# ruff: noqa: N802, N815 (names of CUDA)

import ctypes
from types import SimpleNamespace


class Runtime:
    """CUDA's memory functions, on host memory. `fails` names a function that returns an error."""

    cudaError_t = SimpleNamespace(cudaSuccess=SimpleNamespace(name="cudaSuccess"))
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)

    def __init__(self, fails: str = "") -> None:
        self.fails, self.held, self.copied = fails, {}, []
        self.failed = SimpleNamespace(name="cudaErrorMemoryAllocation")

    def _answer(self, name: str, *result: object) -> tuple[object, ...]:
        failed = name == self.fails
        return (
            self.failed if failed else self.cudaError_t.cudaSuccess,
            *(None if failed else value for value in result),
        )

    def cudaMalloc(self, size):
        block = ctypes.create_string_buffer(size)
        if self.fails != "cudaMalloc":
            self.held[ctypes.addressof(block)] = block
        return self._answer("cudaMalloc", ctypes.addressof(block))

    def cudaMemcpy(self, to, source, size, kind):
        if self.fails != "cudaMemcpy":
            ctypes.memmove(to, source, size)
            self.copied.append(kind)
        return self._answer("cudaMemcpy")

    def cudaFree(self, pointer):
        del self.held[pointer]
        return self._answer("cudaFree")

    def cudaGetErrorString(self, code):
        return self.cudaError_t.cudaSuccess, b"out of memory"
