"""The GPU that torch computes on, known by its vendor's identifier, and what the vendor's library says of it."""

from collections.abc import Callable
from typing import Any

from mfulab.device import APPLE, identity, is_gpu, vendors
from mfulab.device.vendors import GpuProperties, apple


def uuid_of(device: Any) -> str:
    """The identifier of a GPU, given as torch.device, without NVIDIA's prefix (GPU or MIG): torch gives none.

    An AMD GPU's is that of its place among those that this process sees: HIP's UUIDs are not AMD SMI's.
    """
    import torch

    if device.type == APPLE:
        return identity.gpus(APPLE)[0].uuid
    if torch.version.hip:
        return identity.cuda_devices()[torch.cuda.current_device() if device.index is None else device.index].uuid
    return str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-").removeprefix("MIG-")


def capability_of(device: Any = None) -> tuple[int, int] | None:
    """Compute capability of a torch CUDA device, of the current one where none is given.

    None of an AMD GPU: torch gives it the numbers of its architecture (MI300: 9.4), none of NVIDIA's. Nor of Apple's.
    """
    import torch

    if torch.version.hip or getattr(device, "type", device) == APPLE:
        return None
    return torch.cuda.get_device_capability(device)


def clock_reader(device: Any) -> Callable[[], float | None]:
    """A function that reads the GPU's clock in MHz now; None if it is not reported, as on a CPU."""
    if not is_gpu(device):
        return lambda: None
    uuid = uuid_of(device)
    return vendors.of(uuid).clock_reader(uuid)  # type: ignore[no-any-return]


def restriction_of(device: Any) -> str:
    """Restriction that hides some of a torch.device's values: `MIG instance`, `vGPU` or nothing."""
    return vendors.of(uuid := uuid_of(device)).restriction(uuid) if is_gpu(device) else ""


def properties_of(device: Any) -> GpuProperties:
    """Properties that decide a GPU's peaks; clocks and bus width are None if the vendor hides them."""
    import torch

    if device.type == APPLE:
        known = identity.gpus(APPLE)[0]
        return vendors.of(known.uuid).properties(known.uuid, known.name)  # type: ignore[no-any-return]
    facts, uuid = torch.cuda.get_device_properties(device), uuid_of(device)
    return vendors.of(uuid).properties(uuid, facts.name, facts.multi_processor_count)  # type: ignore[no-any-return]


def last_cache_bytes(device: Any) -> int:
    """Bytes of the last cache before a GPU's memory."""
    import torch

    if device.type == APPLE:
        return apple.LAST_CACHE_BYTES
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
