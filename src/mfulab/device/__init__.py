"""This device: its identity, peaks and samplers; and its kind, which is asked here and compared nowhere else.

A kind is torch's name of a device; AMD's GPUs are `cuda` too. A vendor whose GPUs have another is one more kind here,
and a module for its counters. Needs no torch.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from mfulab.core.errors import UnsupportedError

Value = TypeVar("Value")
GPU = "cuda"  # the kind of NVIDIA's and AMD's
APPLE = "mps"
GPUS = (GPU, APPLE)
# How slugs of CUDA's and HIP's GPUs begin: NVML still calls some by their line alone, such as Tesla T4.
NAMED = ("nvidia", "tesla", "quadro", "geforce", "titan", "grid", "amd-instinct", "amd-radeon", "amd-gpu")
OF_GPUS = ("mfulab.device.vendors", "mfulab.timing.device_timer")  # code that does nothing for a CPU


def is_gpu(device: Any) -> bool:
    """True for a GPU, given as a torch.device or as a kind, which may be None; false for torch's meta device."""
    return getattr(device, "type", device) in GPUS


def kind_of(hardware: str) -> str:
    """The kind of the device that a slug names, such as `nvidia-h100-80gb-hbm3`."""
    if hardware.startswith("apple") and hardware.endswith("-gpu"):
        return APPLE
    return GPU if hardware.startswith(NAMED) else "cpu"


def visible(devices: Sequence[str]) -> dict[str, str]:
    """The variable that shows these GPUs alone: CUDA's takes UUIDs, HIP's the number in `HIP-<number>-<address>`."""
    if devices and all(device.startswith("HIP-") for device in devices):
        return {"HIP_VISIBLE_DEVICES": ",".join(device.split("-")[1] for device in devices)}
    if devices and devices[0].startswith("MPS-"):  # the machine's only one
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)}


def require_cuda(device: Any, what: str) -> None:
    """Raises UnsupportedError for a GPU of another kind than CUDA's, as `what` is written with CUDA's own functions."""
    if (kind := getattr(device, "type", device)) in GPUS and kind != GPU:
        raise UnsupportedError(f"{what}: needs CUDA's streams and counters; {kind} has none")


def synchronise(device: Any) -> None:
    """Waits until a torch.device has done what was enqueued; a CPU has."""
    import torch

    torch.get_device_module(device).synchronize()


class ByKind(dict[str, Value]):
    """A value for each kind: `ByKind(cpu=3, gpu=2)[device.type]`."""

    def __init__(self, cpu: Value, gpu: Value) -> None:
        super().__init__({"cpu": cpu, **dict.fromkeys(GPUS, gpu)})
