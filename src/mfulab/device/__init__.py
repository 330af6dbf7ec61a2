"""Kinds of devices, as torch names them. Other modules ask here instead of comparing device types
themselves. Does not import torch."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch

Device: TypeAlias = "torch.device | str | None"  # a str is a device kind
Value = TypeVar("Value")
# torch's device type for NVIDIA's GPUs, and also for AMD's under HIP
GPU = "cuda"
OF_CPUS = r"-\d+c$"  # end of a CPU's slug: its core count
NO_GPU = (None, "", "auto", "cpu", "meta")
OF_GPUS = (
    "mfulab.device.vendors",
    "mfulab.timing.device_timer",
)  # modules that have no effect on a CPU


def is_gpu(device: "Device") -> bool:
    """True for any GPU, given as a torch.device or as its kind. False for the CPU, torch's meta
    device and None."""
    return getattr(device, "type", device) not in NO_GPU


def kind_of(hardware: str) -> str:
    """Device kind for a hardware slug such as `nvidia-h100-80gb-hbm3`. A CPU's slug ends with its
    core count, and no other slug does. If a GPU's slug names no vendor, looks for it among the GPUs
    of this machine; elsewhere it is of the vendor of all other identifiers."""
    from mfulab.device.identity import slug
    from mfulab.device.vendors import makers, of

    if not hardware or re.search(OF_CPUS, hardware):
        return "cpu"
    for vendor in makers():
        if re.match(vendor.SLUG, hardware):
            return vendor.KIND
    for vendor in makers():
        if any(slug(gpu.name) == hardware for gpu in vendor.gpus({})):
            return vendor.KIND
    return of("").KIND


def visible(devices: Sequence[str]) -> dict[str, str]:
    """Environment variable that makes only these GPUs visible, such as `{"CUDA_VISIBLE_DEVICES":
    …}`. Empty if a machine can have only one."""
    from mfulab.device import vendors

    return vendors.of(next(iter(devices), "")).visible(devices)


def require_cuda(device: "Device", what: str) -> None:
    """Raises UnsupportedError for a GPU that is not a CUDA device, because `what` calls CUDA
    functions directly."""
    # Imported here: each run's client imports this module, and the errors would double its start.
    from mfulab.core.errors import UnsupportedError
    from mfulab.core.said import Said, of_source

    kind = getattr(device, "type", device)
    if is_gpu(device) and kind != GPU:
        raise UnsupportedError(of_source(what, Said("needs_cuda", kind=str(kind))))


def synchronise(device: "torch.device | str") -> None:
    """Waits until all work queued on a device has finished. Returns at once on a CPU."""
    import torch

    torch.get_device_module(device).synchronize(*named(device))


def named(device: "torch.device | str") -> "tuple[torch.device | str, ...]":
    """Arguments that select a device in its torch module, such as `torch.cuda`. Empty if the module
    has only one device, such as `torch.mps`."""
    return (device,) if getattr(device, "type", device) == GPU else ()


class ByKind(dict[str, Value]):
    """Mapping with one value for the CPU and one for GPUs of every kind: `ByKind(cpu=3,
    gpu=2)[device.type]`."""

    def __missing__(self, kind: str) -> Value:
        return self["gpu"]
