"""Properties of the GPU behind a torch.device, as its vendor's library reports them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mfulab.device import GPU, is_gpu, vendors
from mfulab.device.vendors import GpuProperties

if TYPE_CHECKING:
    import torch


def uuid_of(device: "torch.device") -> str:
    """Identifier of a torch.device in its vendor's module."""
    return vendors.of_device(device).uuid_of(device)


def capability_of(device: "torch.device | None" = None) -> tuple[int, int] | None:
    """Compute capability of a CUDA device, by default the current one. None for other GPUs,
    including AMD's, whose numbering differs."""
    import torch

    if torch.version.hip or getattr(device, "type", GPU) != GPU:
        return None
    return torch.cuda.get_device_capability(device)


def clock_reader(device: "torch.device") -> Callable[[], float | None]:
    """Returns a function that reads the GPU's current clock in MHz. The function returns None if
    there is no clock to read, as on a CPU."""
    if not is_gpu(device):
        return lambda: None
    uuid = uuid_of(device)
    return vendors.of(uuid).clock_reader(uuid)


def restriction_of(device: "torch.device") -> str:
    """`MIG instance` or `vGPU` if a torch.device hides some of its values, else empty."""
    if is_gpu(device):
        return vendors.of(uuid := uuid_of(device)).restriction(uuid)
    return ""


def properties_of(device: "torch.device") -> GpuProperties:
    """Properties that determine a GPU's peaks. Clocks and bus width are None if not reported."""
    vendor = vendors.of_device(device)
    uuid = uuid_of(device)
    name, units = vendor.name_and_units(device)
    return vendor.properties(uuid, name, units)
