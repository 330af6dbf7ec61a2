"""The library's matmul that every implementation is timed against in the same run."""

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import MatmulKernel, Shape


def reference_for(precision: str, device: str, shape: Shape) -> tuple[str, MatmulKernel] | None:
    """torch's matmul and its name, on a GPU the library's beneath it; None if torch has none for this."""
    from mfulab.kernels.torch_matmul import Torch
    from mfulab.kernels.torch_scaled import TorchScaled

    kind = TorchScaled if precision == "fp8" else Torch
    try:
        kernel = kind(precision)
        kernel.require(device, shape)
    except UnsupportedError:
        return None
    if device == "cpu":
        return "torch", kernel
    return ("cuBLASLt (torch._scaled_mm)" if precision == "fp8" else "cuBLAS (torch.matmul)"), kernel
