"""Base of the CPU rungs: torch tensors seen as NumPy arrays, given to one compiled function."""

from collections.abc import Callable
from typing import Any, ClassVar

from mfulab.kernels.base import Launch, MatmulKernel


class CpuKernel(MatmulKernel):
    """`function` takes a[batch,m,k], b[batch,k,n], c[batch,m,n], and what `launch.block` holds."""

    family = "CPU"
    devices = ("cpu",)
    precisions: ClassVar[tuple[str, ...]] = ("fp64", "fp32")
    function: ClassVar[Callable[..., Any]]

    def prepare(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return a.numpy(), b.numpy(), c.numpy()

    def run(self, *operands: Any, launch: Launch) -> None:
        type(self).function(*operands, *launch.block)
