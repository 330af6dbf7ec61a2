"""Copies a matrix to the GPU and back with cudaMalloc, cudaMemcpy and cudaFree, and checks the
codes that they return.

    python examples/memory_by_hand.py

`cuda.bindings.runtime` is C's interface: a call returns its code along with its result and raises
nothing. An unchecked error shows up later in another place: see what `unlooked_at` returns without
a GPU.
"""

import sys
from typing import Any

import numpy as np
from cuda.bindings import runtime

TO_DEVICE, TO_HOST = (
    getattr(runtime.cudaMemcpyKind, f"cudaMemcpy{way}") for way in ("HostToDevice", "DeviceToHost")
)


class CudaError(RuntimeError):
    """Raised if a call of the CUDA runtime does not return success."""


def checked(answer: tuple[Any, ...]) -> Any:
    """Result of a call that returned success. Otherwise raises CudaError with the runtime's
    message."""
    code, *result = answer
    if code != runtime.cudaError_t.cudaSuccess:
        raise CudaError(f"{code.name}: {runtime.cudaGetErrorString(code)[1].decode()}")
    return result[0] if result else None


def unlooked_at() -> Any:
    """Pointer of a call whose code is dropped, as `[1]` does. Without a GPU it is None, without any
    error."""
    return runtime.cudaMalloc(1024)[1]


def there_and_back(matrix: np.ndarray) -> np.ndarray:
    """Copy of the matrix by way of the device's memory. Raises CudaError. Always frees the
    memory."""
    result = np.empty_like(matrix)
    pointer = checked(runtime.cudaMalloc(matrix.nbytes))
    try:
        checked(runtime.cudaMemcpy(pointer, matrix.ctypes.data, matrix.nbytes, TO_DEVICE))
        checked(runtime.cudaMemcpy(result.ctypes.data, pointer, matrix.nbytes, TO_HOST))
    finally:
        checked(runtime.cudaFree(pointer))
    return result


if __name__ == "__main__":
    sent = np.random.default_rng(0).random((1024, 1024), np.float32)
    print(f"not looked at: {unlooked_at()}")
    try:
        received = there_and_back(sent)
    except CudaError as error:
        sys.exit(f"looked at: {error}")
    print(f"{sent.nbytes:,} bytes there and back; equal: {np.array_equal(sent, received)}")
