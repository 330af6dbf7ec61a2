"""The boundary to NVML: opens the library, finds a GPU by UUID, and turns refused calls into reasons."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from mfulab.device.vendors import RefusedError

# The ways in which a driver inside a virtual machine shares one GPU; passing a whole one through is not among them.
VIRTUAL = (pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU, pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU)


def ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """`call(*arguments)`, or RefusedError with the library's reason where it answers with an error."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise RefusedError(f"{getattr(call, '__name__', 'NVML')}: {error}") from error
    except (AttributeError, ValueError) as error:  # a call younger than the wheel, a malformed UUID
        raise RefusedError(f"NVML: {error}") from error


def optional(call: Callable[..., Any], *arguments: Any) -> Any:
    """`call(*arguments)`, None if NVML refuses, or if the first of them, a handle, is None."""
    with contextlib.suppress(RefusedError):
        return None if arguments[:1] == (None,) else ask(call, *arguments)


@functools.cache
def why_absent() -> str | None:
    """Reason why NVML cannot be used in this process, or None. Initialises the library once; makes no context."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"no NVIDIA driver answers: {error}"
    return None


def handle_by_uuid(uuid: str) -> Any:
    """The NVML handle of the GPU or MIG instance `uuid` (with or without its prefix). CUDA's index is not NVML's."""
    if reason := why_absent():
        raise RefusedError(reason)
    for candidate in (uuid,) if uuid.startswith(("GPU-", "MIG-")) else (f"GPU-{uuid}", f"MIG-{uuid}"):
        with contextlib.suppress(RefusedError):
            return ask(pynvml.nvmlDeviceGetHandleByUUID, candidate)
    raise RefusedError(f"NVML knows no device with UUID {uuid}")


def handles() -> Iterator[Any]:
    """The handles of all GPUs in NVML's order (that of the PCI bus); none without a driver."""
    count = None if why_absent() else optional(pynvml.nvmlDeviceGetCount)
    return _each(count, pynvml.nvmlDeviceGetHandleByIndex)


def mig_instances(handle: Any) -> list[Any] | None:
    """The handles of a GPU's MIG instances; None where MIG is off or unknown to it."""
    mode = optional(pynvml.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    count = optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    return list(_each(count, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle))


def _each(count: int | None, call: Callable[..., Any], *parents: Any) -> Iterator[Any]:
    for index in range(count or 0):
        with contextlib.suppress(RefusedError):
            yield ask(call, *parents, index)


def is_mig(handle: Any) -> bool:
    """True if `handle` is a MIG instance rather than a whole GPU."""
    return bool(getattr(optional(pynvml.nvmlDeviceIsMigDeviceHandle, handle), "value", 0))  # a ctypes number


def parent(handle: Any) -> Any:
    """The whole GPU that `handle` is, or is a MIG instance of."""
    return (optional(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) if is_mig(handle) else None) or handle


def restriction(handle: Any) -> str:
    """Restriction that hides some of a device's values: `MIG instance`, `vGPU`, or nothing."""
    if is_mig(handle):
        return "MIG instance"
    return "vGPU" if optional(pynvml.nvmlDeviceGetVirtualizationMode, handle) in VIRTUAL else ""
