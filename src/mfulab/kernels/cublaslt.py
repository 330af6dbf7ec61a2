"""cuBLASLt through `nvmath.bindings.cublasLt`: selection of algorithms, fp8, and fused
epilogues."""

import functools
from typing import Any, ClassVar

import numpy as np
import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.kernels.base import Launch, MatmulKernel, Shape
from mfulab.kernels.cublas import TYPES, WORKSPACE_BYTES, workspace
from mfulab.kernels.devices import current_stream

_ONE = np.ones(1, np.float32)
_ZERO = np.zeros(1, np.float32)


class CublasLt(MatmulKernel):
    """Uses the heuristic's first algorithm for up to 32 MiB of workspace. For fp8, B is transposed
    beforehand (untimed)."""

    family = "library"
    after = "cublas"
    adds = "cuBLASLt: the algorithm chosen by its heuristic; fp8"
    devices = ("cuda",)
    least_capability = (5, 0)  # neither the library nor Numba supports older GPUs
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "tf32", "fp16", "bf16", "fp8")
    epilogue = "DEFAULT"

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if self.precision == "fp8" and (shape.n % 16 or shape.k % 16):
            raise UnsupportedError(Said("fp8_multiples", kernel=str(self), shape=str(shape)))

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        transposed = self.precision == "fp8"
        if transposed:
            b = b.transpose(1, 2).contiguous()
        bias = None
        if "BIAS" in self.epilogue:
            bias = torch.zeros(c.shape[2], dtype=c.dtype, device=c.device)
        plan = _Plan(self.precision, self.epilogue, a, b, c, bias, transposed)
        return a, b, c, bias, plan

    def run(self, *operands: Any, launch: Launch) -> None:
        a, b, c, _, plan = operands
        plan.run(a, b, c, current_stream())


class CublasLtBias(CublasLt):
    """Adds a bias in the matmul's epilogue, to show the cost of fusion. The bias is zero, so the
    result is still A·B."""

    after = "cublaslt"
    adds = "a bias added in the matmul's own epilogue: what fusing costs"
    precisions = ("fp16", "bf16", "fp8")
    epilogue = "BIAS"


class _Plan:
    """Descriptors and algorithm for Cᵀ = Bᵀ·Aᵀ, because the library is column-major."""

    def __init__(
        self, precision: str, epilogue: str, a: Any, b: Any, c: Any, bias: Any, transposed: bool
    ):
        from nvmath import CudaDataType
        from nvmath.bindings import cublas
        from nvmath.bindings import cublasLt as lt  # noqa: N813

        operand, output, compute, _ = TYPES[precision]
        batch, m, k = a.shape
        n = c.shape[2]
        self._lt = lt
        self._handle = _handle(a.device)
        self._descriptor = lt.matmul_desc_create(
            cublas.ComputeType[compute], CudaDataType.CUDA_R_32F
        )
        attribute = lt.MatmulDescAttribute
        turned = cublas.Operation.T if transposed else cublas.Operation.N
        settings: dict[Any, Any] = {
            attribute.TRANSA: np.int32(turned),
            attribute.EPILOGUE: np.int32(lt.Epilogue[epilogue]),
        }
        if bias is not None:
            settings[attribute.BIAS_POINTER] = np.uint64(bias.data_ptr())
            settings[attribute.BIAS_DATA_TYPE] = np.int32(CudaDataType[output])
        self._set("matmul_desc", self._descriptor, settings)
        rows, columns = (k, n) if transposed else (n, k)
        self._b = self._layout(operand, rows, columns, batch)
        self._a = self._layout(operand, k, m, batch)
        self._c = self._layout(output, n, m, batch)
        self._algorithm = self._choose()

    def run(self, a: Any, b: Any, c: Any, stream: int) -> None:
        self._lt.matmul(
            self._handle,
            self._descriptor,
            _ONE.ctypes.data,
            *(b.data_ptr(), self._b, a.data_ptr(), self._a),
            _ZERO.ctypes.data,
            *(c.data_ptr(), self._c, c.data_ptr(), self._c),
            *(self._algorithm.ctypes.data, workspace(a.device).data_ptr(), WORKSPACE_BYTES, stream),
        )

    def _set(self, kind: str, described: int, values: dict[Any, Any]) -> None:
        set_attribute = getattr(self._lt, f"{kind}_set_attribute")
        for attribute, value in values.items():
            held = np.array([value])
            set_attribute(described, attribute, held.ctypes.data, held.nbytes)

    def _layout(self, kind: str, rows: int, columns: int, batch: int) -> int:
        from nvmath import CudaDataType

        layout = self._lt.matrix_layout_create(CudaDataType[kind], rows, columns, rows)
        attribute = self._lt.MatrixLayoutAttribute
        values = {
            attribute.BATCH_COUNT: np.int32(batch),
            attribute.STRIDED_BATCH_OFFSET: np.int64(rows * columns),
        }
        self._set("matrix_layout", layout, values)
        return layout

    def _choose(self) -> np.ndarray:
        """Returns the first result of the heuristic. A cublasLtMatmulHeuristicResult_t begins with
        the algorithm."""
        preference = self._lt.matmul_preference_create()
        attribute = self._lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        self._set("matmul_preference", preference, {attribute: np.uint64(WORKSPACE_BYTES)})
        result = np.zeros(32, np.uint64)
        count = np.zeros(1, np.int32)
        described = (
            self._handle,
            self._descriptor,
            self._b,
            self._a,
            self._c,
            self._c,
            preference,
            1,
        )
        self._lt.matmul_algo_get_heuristic(*described, result.ctypes.data, count.ctypes.data)
        self._lt.matmul_preference_destroy(preference)
        if count[0] == 0:
            raise UnsupportedError(Said("cublaslt_no_algorithm"))
        return result


@functools.cache
def _handle(device: Any) -> int:
    from nvmath.bindings import cublasLt

    return cublasLt.create()
