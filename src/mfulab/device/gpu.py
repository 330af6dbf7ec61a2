"""The GPU that torch computes on, known by its vendor's identifier, and what the vendor's library says of it."""

from collections.abc import Callable
from typing import Any

from mfulab.device import GPU, is_gpu, vendors
from mfulab.device.vendors import GpuProperties


def uuid_of(device: Any) -> str:
    """The identifier by which a vendor's module knows a torch.device."""
    return vendors.of_device(device).uuid_of(device)


def capability_of(device: Any = None) -> tuple[int, int] | None:
    """Compute capability of a torch CUDA device or the current one; None of AMD's, whose numbers mean others."""
    import torch

    if torch.version.hip or getattr(device, "type", GPU) != GPU:
        return None
    return torch.cuda.get_device_capability(device)


def clock_reader(device: Any) -> Callable[[], float | None]:
    """A function that reads the GPU's clock in MHz now; None if it is not reported, as on a CPU."""
    if not is_gpu(device):
        return lambda: None
    uuid = uuid_of(device)
    return vendors.of(uuid).clock_reader(uuid)


def restriction_of(device: Any) -> str:
    """Restriction that hides some of a torch.device's values: `MIG instance`, `vGPU` or nothing."""
    return vendors.of(uuid := uuid_of(device)).restriction(uuid) if is_gpu(device) else ""


def properties_of(device: Any) -> GpuProperties:
    """Properties that decide a GPU's peaks; clocks and bus width are None if the vendor hides them."""
    vendor, uuid = vendors.of_device(device), uuid_of(device)
    name, units = vendor.name_and_units(device)
    return vendor.properties(uuid, name, units)
