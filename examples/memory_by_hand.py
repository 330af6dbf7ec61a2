"""Moves a matrix to the GPU and back by hand: cudaMalloc, cudaMemcpy, cudaFree, and the codes that they return.

    python examples/memory_by_hand.py

`cuda.bindings.runtime` is C's interface: a call returns its code beside its result and raises nothing. A code that is
not looked at is an error that shows later, elsewhere: see what `unlooked_at` gives where there is no GPU.
"""

import sys
from typing import Any

import numpy as np
from cuda.bindings import runtime

TO_DEVICE, TO_HOST = (
    getattr(runtime.cudaMemcpyKind, f"cudaMemcpy{way}") for way in ("HostToDevice", "DeviceToHost")
)


class CudaError(RuntimeError):
    """A call of the CUDA runtime that returned another code than success."""


def checked(answer: tuple[Any, ...]) -> Any:
    """The result of a call, if its code says success. Raises CudaError with the runtime's words
    otherwise."""
    code, *result = answer
    if code != runtime.cudaError_t.cudaSuccess:
        raise CudaError(f"{code.name}: {runtime.cudaGetErrorString(code)[1].decode()}")
    return result[0] if result else None


def unlooked_at() -> Any:
    """The pointer of a call whose code is dropped, as `[1]` does: None where there is no GPU, and
    no word of it."""
    return runtime.cudaMalloc(1024)[1]


def there_and_back(matrix: np.ndarray) -> np.ndarray:
    """A copy of the matrix that was in the device's memory. Raises CudaError; what was allocated is
    freed."""
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
