"""Wraps NVML: opens the library, finds a GPU by UUID, and turns errors into reasons."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import NewType, TypeVar

import pynvml

from mfulab.core.said import Said, of_source
from mfulab.device.vendors import RefusedError

T = TypeVar("T")
Handle = NewType("Handle", object)  # of a GPU or a MIG instance; pynvml has no types
# Modes in which virtual machines share a GPU. A GPU that is passed through as a whole is not shared.
VIRTUAL = (pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU, pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU)


def ask(call: Callable[..., T], *arguments: object) -> T:
    """Returns `call(*arguments)`. Raises RefusedError with the library's reason if the call
    fails."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        name = getattr(call, "__name__", "NVML")
        raise RefusedError(of_source(name, str(error))) from error
    except (AttributeError, ValueError) as error:  # a call newer than the wheel, a malformed UUID
        raise RefusedError(of_source("NVML", str(error))) from error


def optional(call: Callable[..., T], *arguments: object) -> T | None:
    """Same as `ask`, but returns None if NVML refuses, or if the first argument (a handle) is
    None."""
    if arguments[:1] == (None,):
        return None
    try:
        return ask(call, *arguments)
    except RefusedError:
        return None


@functools.cache
def why_absent() -> Said | None:
    """Reason why NVML cannot be used in this process; None if it can. Initialises the library once
    and does not create a context."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Said("no_nvidia_driver", error=str(error))
    return None


def handle_by_uuid(uuid: str) -> Handle:
    """NVML handle of the GPU or MIG instance with this UUID, with or without its prefix. Not by
    index, because CUDA's indices differ from NVML's. Raises RefusedError if there is none."""
    if reason := why_absent():
        raise RefusedError(reason)
    for candidate in (
        (uuid,) if uuid.startswith(("GPU-", "MIG-")) else (f"GPU-{uuid}", f"MIG-{uuid}")
    ):
        with contextlib.suppress(RefusedError):
            return ask(pynvml.nvmlDeviceGetHandleByUUID, candidate)
    raise RefusedError(Said("nvml_knows_no", uuid=uuid))


def handles() -> Iterator[Handle]:
    """Handles of all GPUs in NVML's order, which is that of the PCI bus. Empty without a driver."""
    count = None if why_absent() else optional(pynvml.nvmlDeviceGetCount)
    return _each(count, pynvml.nvmlDeviceGetHandleByIndex)


def mig_instances(handle: Handle) -> list[Handle] | None:
    """Handles of a GPU's MIG instances; None if MIG is off or not supported."""
    mode = optional(pynvml.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    count = optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    return list(_each(count, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle))


def _each(count: int | None, call: Callable[..., Handle], *parents: Handle) -> Iterator[Handle]:
    for index in range(count or 0):
        with contextlib.suppress(RefusedError):
            yield ask(call, *parents, index)


def is_mig(handle: Handle | None) -> bool:
    """True if `handle` is a MIG instance rather than a whole GPU."""
    return bool(
        getattr(optional(pynvml.nvmlDeviceIsMigDeviceHandle, handle), "value", 0)
    )  # a ctypes number


def parent(handle: Handle | None) -> Handle | None:
    """Handle of the whole GPU: `handle` itself, or the GPU of a MIG instance."""
    return (
        optional(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        if is_mig(handle)
        else None
    ) or handle


def restriction(handle: Handle | None) -> str:
    """`MIG instance` or `vGPU` if the device hides some values, else empty."""
    if is_mig(handle):
        return "MIG instance"
    if optional(pynvml.nvmlDeviceGetVirtualizationMode, handle) in VIRTUAL:
        return "vGPU"
    return ""
