"""cuBLAS through its official Python bindings, `nvmath.bindings.cublas`."""

import functools
from typing import Any

import numpy as np
import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, MatmulKernel, Shape
from mfulab.kernels.devices import current_stream

WORKSPACE_BYTES = 32 << 20  # recommended by NVIDIA for Hopper; larger ones allow more algorithms

# (operand type, output type, compute type, type of alpha and beta). cuBLASLt supports fp8, cuBLAS
# does not.
TYPES = {
    "fp64": ("CUDA_R_64F", "CUDA_R_64F", "COMPUTE_64F", np.float64),
    "fp32": ("CUDA_R_32F", "CUDA_R_32F", "COMPUTE_32F", np.float32),
    "tf32": ("CUDA_R_32F", "CUDA_R_32F", "COMPUTE_32F_FAST_TF32", np.float32),
    "fp16": ("CUDA_R_16F", "CUDA_R_16F", "COMPUTE_32F", np.float32),
    "bf16": ("CUDA_R_16BF", "CUDA_R_16BF", "COMPUTE_32F", np.float32),
    "int8": ("CUDA_R_8I", "CUDA_R_32I", "COMPUTE_32I", np.int32),
    "fp8": ("CUDA_R_8F_E4M3", "CUDA_R_16BF", "COMPUTE_32F", np.float32),
}


class Cublas(MatmulKernel):
    """Calls `cublasGemmStridedBatchedEx`. cuBLAS is column-major, so it computes Cᵀ = Bᵀ·Aᵀ, which
    is C in row-major order. For int8, B is transposed beforehand (untimed), because the fast
    kernels read both operands along k."""

    family = "library"
    after = "torch"
    adds = "cuBLAS called directly, without the framework"
    devices = ("cuda",)
    least_capability = (5, 0)  # neither the library nor Numba supports older GPUs
    precisions = ("fp64", "fp32", "tf32", "fp16", "bf16", "int8")

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if self.precision == "int8" and (shape.n % 4 or shape.k % 4):
            raise UnsupportedError(Said("int8_rows", kernel=str(self), shape=str(shape)))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        if self.precision == "int8":
            b = b.transpose(1, 2).contiguous()
        return a, b, c

    def run(self, *operands: Any, launch: Launch) -> None:
        from nvmath import CudaDataType
        from nvmath.bindings import cublas

        a, b, c = operands
        batch, m, k = a.shape
        n = c.shape[2]
        operand, output, compute, scalar = TYPES[self.precision]
        unit, zero = _scalars(scalar)
        kind = CudaDataType[operand]
        kind_c = CudaDataType[output]
        plain = cublas.Operation.N
        of_b = plain
        columns = n
        if self.precision == "int8":
            of_b = cublas.Operation.T
            columns = k
        try:
            cublas.gemm_strided_batched_ex(
                _handle(a.device, current_stream()),
                *(of_b, plain, n, m, k),
                unit.ctypes.data,
                *(b.data_ptr(), kind, columns, k * n),
                *(a.data_ptr(), kind, k, m * k),
                zero.ctypes.data,
                *(c.data_ptr(), kind_c, n, m * n),
                *(batch, cublas.ComputeType[compute], cublas.GemmAlgo.DEFAULT),
            )
        except cublas.cuBLASError as error:
            # with B along n, k = 72 was accepted for n = 128, but not for n = 136
            if "NOT_SUPPORTED" not in str(error):
                raise
            raise UnsupportedError(
                Said("cublas_no_matmul", kernel=str(self), m=m, n=n, k=k)
            ) from error


@functools.cache
def _scalars(kind: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(1, kind), np.zeros(1, kind)


@functools.cache
def workspace(device: Any) -> Any:
    """Scratch memory on a torch.device for cuBLAS and cuBLASLt, allocated once per device."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


@functools.cache
def _handle(device: Any, stream: int) -> int:
    from nvmath.bindings import cublas

    handle = cublas.create()
    cublas.set_stream(handle, stream)
    cublas.set_workspace(handle, workspace(device).data_ptr(), WORKSPACE_BYTES)
    return handle
