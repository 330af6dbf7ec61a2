"""Kind of a device, torch's name of it, which is asked here and compared nowhere else. Needs no
torch."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch

Device: TypeAlias = "torch.device | str | None"  # or its kind
Value = TypeVar("Value")
# the kind of GPUs with CUDA's streams and counters, or with HIP's, which torch calls the same
GPU = "cuda"
OF_CPUS = r"-\d+c$"  # how the slugs of CPUs end
NO_GPU = (None, "", "auto", "cpu", "meta")
OF_GPUS = (
    "mfulab.device.vendors",
    "mfulab.timing.device_timer",
)  # code that does nothing for a CPU


def is_gpu(device: "Device") -> bool:
    """True for a GPU, given as a torch.device or as a kind, which may be None; false for torch's
    meta device."""
    return getattr(device, "type", device) not in NO_GPU


def kind_of(hardware: str) -> str:
    """The kind of the device that a slug names, such as `nvidia-h100-80gb-hbm3`: a CPU's ends with
    its cores. Of a GPU whose name tells no maker the driver here is asked."""
    from mfulab.device.identity import slug
    from mfulab.device.vendors import makers

    if not hardware or re.search(OF_CPUS, hardware):
        return "cpu"
    for vendor in makers():
        if re.match(vendor.SLUG, hardware):
            return vendor.KIND
    for vendor in makers():
        if any(slug(gpu.name) == hardware for gpu in vendor.gpus({})):
            return vendor.KIND
    return "cpu"


def visible(devices: Sequence[str]) -> dict[str, str]:
    """The variable that shows the GPUs of these identifiers alone."""
    from mfulab.device import vendors

    return vendors.of(next(iter(devices), "")).visible(devices)


def require_cuda(device: "Device", what: str) -> None:
    """Raises UnsupportedError for a GPU of another kind than CUDA's, as `what` is written with
    CUDA's own functions."""
    # Not above: each run's client imports this module, and errors would double what it takes.
    from mfulab.core.errors import UnsupportedError
    from mfulab.core.said import Said, of_source

    kind = getattr(device, "type", device)
    if is_gpu(device) and kind != GPU:
        raise UnsupportedError(of_source(what, Said("needs_cuda", {"kind": str(kind)})))


def synchronise(device: "torch.device | str") -> None:
    """Waits until a device, or the current one of a kind, has done what was enqueued; a CPU has."""
    import torch

    torch.get_device_module(device).synchronize(*named(device))


def named(device: "torch.device | str") -> "tuple[torch.device | str, ...]":
    """The arguments that choose a torch.device in functions of its module: none where there is but
    one, as of MPS."""
    return (device,) if getattr(device, "type", device) == GPU else ()


class ByKind(dict[str, Value]):
    """A value for a CPU and one for GPUs of every kind: `ByKind(cpu=3, gpu=2)[device.type]`."""

    def __missing__(self, kind: str) -> Value:
        return self["gpu"]
