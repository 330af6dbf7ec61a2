"""The library product that every implementation is timed against in the same run."""

from mfulab.errors import UnsupportedError
from mfulab.kernels.base import MatmulKernel, Shape


def reference_for(precision: str, device: str, shape: Shape) -> MatmulKernel | None:
    """torch's product (on a GPU that is cuBLAS); None where it has none in this precision for this shape."""
    from mfulab.kernels.torch_matmul import Torch
    from mfulab.kernels.torch_scaled import TorchScaled

    try:
        kernel = TorchScaled(precision) if precision == "fp8" else Torch(precision)
        kernel.require(device, shape)
    except UnsupportedError:
        return None
    return kernel
