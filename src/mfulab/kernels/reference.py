"""The library's matmul that every implementation is timed against in the same run."""

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import MatmulKernel, Shape


def reference_for(measured: MatmulKernel, device: str, shape: Shape) -> tuple[str, MatmulKernel] | None:
    """torch's matmul and its name, on a GPU the library's beneath it; None if it has none. In fp8 it accumulates as
    fast as the measured kernel does."""
    from mfulab.kernels.torch_matmul import Torch
    from mfulab.kernels.torch_scaled import TorchScaled, TorchScaledFast

    scaled = TorchScaledFast if measured.accumulates_fast else TorchScaled
    kind = scaled if measured.precision == "fp8" else Torch
    try:
        kernel = kind(measured.precision)
        kernel.require(device, shape)
    except UnsupportedError:
        return None
    if device == "cpu":
        return "torch", kernel
    how = ", fast accumulation" if measured.accumulates_fast else ""
    return (f"cuBLASLt (torch._scaled_mm{how})" if measured.precision == "fp8" else "cuBLAS (torch.matmul)"), kernel
