"""The GPU that torch computes on, matched to NVML's by UUID, and its properties."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from mfulab.device import is_gpu, nvml
from mfulab.device.identity import CudaDevice


@dataclass(frozen=True)
class GpuProperties:
    """Properties that decide a GPU's peaks, as the driver reports them. Clocks in MHz; `bus_bits`: memory bus width."""

    name: str
    sms: int | None
    max_sm_clock_mhz: float | None
    max_memory_clock_mhz: float | None = None
    bus_bits: int | None = None
    pci_id: str | None = None


def uuid_of(device: Any) -> str:
    """The UUID of a torch CUDA device, without its prefix (GPU or MIG): torch gives none."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-").removeprefix("MIG-")


def handle_of(device: Any) -> Any:
    """The NVML handle of a torch CUDA device; raises RefusedError where NVML does not know it."""
    return nvml.handle_by_uuid(uuid_of(device))


def capability_of(device: Any = None) -> tuple[int, int] | None:
    """Compute capability of a torch CUDA device, of the current one where none is given.

    None of an AMD GPU: torch gives it the numbers of its architecture (MI300: 9.4), none of NVIDIA's.
    """
    import torch

    return None if torch.version.hip else torch.cuda.get_device_capability(device)


def clock_reader(device: Any) -> Callable[[], float | None]:
    """A function that reads the SM clock in MHz now; None if it is not reported, as on a CPU."""
    handle = _handle(device)
    return lambda: nvml.optional(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)


def restriction_of(device: Any) -> str:
    """`MIG instance`, `vGPU` or nothing, for a torch.device."""
    handle = _handle(device)
    return "" if handle is None else nvml.restriction(handle)


def _handle(device: Any) -> Any:
    """NVML's handle of a GPU that it knows, otherwise None."""
    with contextlib.suppress(nvml.RefusedError):
        return handle_of(device) if is_gpu(device) else None


def properties_of(device: Any) -> GpuProperties:
    """Properties that decide a torch CUDA device's peaks; clocks and bus width are None if NVML hides them."""
    import torch

    facts = torch.cuda.get_device_properties(device)
    return _properties(_handle(device), facts.name, facts.multi_processor_count)


def properties_by_nvml(device: CudaDevice) -> GpuProperties:
    """Properties that decide a device's peaks, from NVML alone, without torch; of a MIG instance its SMs, too."""
    handle = nvml.handle_by_uuid(device.uuid)
    slice_of = nvml.optional(pynvml.nvmlDeviceGetAttributes, handle) if nvml.is_mig(handle) else None
    return _properties(handle, device.name, None if slice_of is None else slice_of.multiprocessorCount)


def capability_by_nvml(device: CudaDevice) -> tuple[int, int] | None:
    """Compute capability of a device, of a MIG instance that of its GPU; None if NVML does not report it."""
    handle = nvml.parent(nvml.handle_by_uuid(device.uuid))
    found = nvml.optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return None if found is None else (found[0], found[1])


def _properties(handle: Any, name: str, sms: int | None) -> GpuProperties:
    whole = None if handle is None else nvml.parent(handle)
    pci = nvml.optional(pynvml.nvmlDeviceGetPciInfo, whole)
    return GpuProperties(
        name=name,
        sms=sms,
        max_sm_clock_mhz=nvml.optional(pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_SM),
        max_memory_clock_mhz=nvml.optional(pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_MEM),
        bus_bits=nvml.optional(pynvml.nvmlDeviceGetMemoryBusWidth, whole),
        pci_id=None if pci is None else f"{pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}",
    )


def describe(handle: Any) -> dict[str, object]:
    """Columns of the environment's table for one GPU, by NVML; None if it does not report them."""

    def asked(call: Any, *arguments: Any, read: Callable[[Any], object] = lambda value: value) -> object:
        value = nvml.optional(call, handle, *arguments)
        return None if value is None else read(value)

    return {
        "name": asked(pynvml.nvmlDeviceGetName, read=nvml.text),
        "uuid": asked(pynvml.nvmlDeviceGetUUID, read=nvml.text),
        "compute_capability": asked(
            pynvml.nvmlDeviceGetCudaComputeCapability, read=lambda found: ".".join(map(str, found))
        ),
        "max_sm_clock_mhz": asked(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        "max_memory_clock_mhz": asked(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
        "memory_bus_bits": asked(pynvml.nvmlDeviceGetMemoryBusWidth),
        "memory_bytes": asked(pynvml.nvmlDeviceGetMemoryInfo, read=lambda memory: memory.total),
        "power_limit_w": asked(pynvml.nvmlDeviceGetPowerManagementLimit, read=lambda limit: limit / 1e3),
        "mig": asked(pynvml.nvmlDeviceGetMigMode, read=lambda mode: bool(mode[0])),
        "virtual": asked(pynvml.nvmlDeviceGetVirtualizationMode, read=lambda mode: mode in nvml.VIRTUAL),
    }
