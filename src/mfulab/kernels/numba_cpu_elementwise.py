"""The seminar's element-wise product on the CPU by Numba: c[i] = a[i]·b[i], the smallest kernel there is."""

from typing import Any

from numba import njit, prange

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Launch, MatmulKernel, Shape


@njit(parallel=True)
def _multiply(a, b, c):
    for place in prange(len(c)):
        c[place] = a[place] * b[place]


class NumbaCpuElementwise(MatmulKernel):
    """A batch of 1×1×1 products, as `cuda_elementwise` on a GPU: memory's bandwidth is its ceiling."""

    family, after = "element-wise", ""
    adds = "one multiplication for 12 bytes in float32, on every core"
    devices = ("cpu",)
    precisions = ("fp64", "fp32")

    def require(self, device: str, shape: Shape) -> None:
        super().require(device, shape)
        if shape[1:] != (1, 1, 1):
            raise UnsupportedError(
                f"{self} multiplies element by element, not {shape}; size=16777216x1x1x1 is its kind"
            )

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return tuple(tensor.view(-1).numpy() for tensor in (a, b, c))

    def run(self, *operands: Any, launch: Launch) -> None:
        _multiply(*operands)
