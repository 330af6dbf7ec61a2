"""The GPU that torch computes on, known by its vendor's identifier, and what the vendor's library
says of it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mfulab.device import GPU, is_gpu, vendors
from mfulab.device.vendors import GpuProperties

if TYPE_CHECKING:
    import torch


def uuid_of(device: "torch.device") -> str:
    """The identifier by which a vendor's module knows a torch.device."""
    return vendors.of_device(device).uuid_of(device)


def capability_of(device: "torch.device | None" = None) -> tuple[int, int] | None:
    """Compute capability of a torch CUDA device or the current one; None of AMD's, whose numbers
    mean others."""
    import torch

    if torch.version.hip or getattr(device, "type", GPU) != GPU:
        return None
    return torch.cuda.get_device_capability(device)


def clock_reader(device: "torch.device") -> Callable[[], float | None]:
    """A function that reads the GPU's clock in MHz now; None if it is not reported, as on a CPU."""
    if not is_gpu(device):
        return lambda: None
    uuid = uuid_of(device)
    return vendors.of(uuid).clock_reader(uuid)


def restriction_of(device: "torch.device") -> str:
    """Restriction that hides some of a torch.device's values: `MIG instance`, `vGPU` or nothing."""
    if is_gpu(device):
        return vendors.of(uuid := uuid_of(device)).restriction(uuid)
    return ""


def properties_of(device: "torch.device") -> GpuProperties:
    """Properties that decide a GPU's peaks; clocks and bus width are None if the vendor hides
    them."""
    vendor = vendors.of_device(device)
    uuid = uuid_of(device)
    name, units = vendor.name_and_units(device)
    return vendor.properties(uuid, name, units)
