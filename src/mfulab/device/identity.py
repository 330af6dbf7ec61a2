"""Identity of the device: the slug that names its results, and the GPUs that torch would see. Planning imports it."""

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import pynvml

from mfulab.device import APPLE, cpu, is_gpu, vendors
from mfulab.device.vendors import amd, apple, nvml

DeviceType = Literal["auto", "cpu", "cuda", "mps"]


class NoDeviceError(ValueError):
    """The device that was asked for is ambiguous or missing; the message says what to do."""


@dataclass(frozen=True)
class CudaDevice:
    """One GPU, or one MIG instance of it, that torch would see; its vendor's module knows it by `uuid`."""

    name: str
    uuid: str


def resolve(device_type: DeviceType) -> Literal["cpu", "cuda", "mps"]:
    """The device to measure: `auto` is any usable GPU but Apple's; raises NoDeviceError for `cuda` or `mps` without."""
    if device_type == "cpu":
        return "cpu"
    if device_type == APPLE:
        reason = "" if gpus(APPLE) else "this machine is no Mac with Apple silicon"
    else:
        reason = _why_no_torch_cuda() if cuda_devices() else _why_no_gpu()
    if not reason:
        return "mps" if device_type == APPLE else "cuda"
    if is_gpu(device_type):
        raise NoDeviceError(f"device={device_type}: {reason}; choose device=cpu or device=auto")
    return "cpu"


def gpus(kind: str) -> list[CudaDevice]:
    """The GPUs of a kind that torch would see, in its order; empty for `cpu`."""
    if kind == APPLE:
        return [CudaDevice(name, uuid) for name, uuid in apple.gpus()]
    return cuda_devices() if is_gpu(kind) else []


def hardware_slug(device_type: DeviceType = "auto") -> str:
    """The device's name as a folder: `nvidia-h100-80gb-hbm3`, or `amd-epyc-4c` with the cores that may be used."""
    if found := gpus(resolve(device_type)):
        return slug(found[0].name)
    return f"{slug(cpu.cpu().name)}-{cpu.usable_cores()}c"


def memory_bytes(kind: str) -> float | None:
    """Memory of the first GPU of a kind in bytes; None for a CPU, for MIG instances, and where nobody tells."""
    uuid = next((gpu.uuid for gpu in gpus(kind)), "")
    described = vendors.of(uuid).describe_all() if uuid else []
    return next((facts.get("memory_bytes") for facts in described if facts.get("uuid") == uuid), None)


def slug(name: str) -> str:
    """`name` in lower case with hyphens, without trademarks, clocks and words that say nothing.

    >>> slug("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")
    'intel-xeon-platinum-8481c'
    """
    name = re.sub(r"\((r|tm|c)\)|@.*$", " ", name.lower())
    name = re.sub(r"\b(cpu|processor|\d+-core|with .* graphics)\b", " ", name)
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "unknown"


def cuda_devices(environment: Mapping[str, str] | None = None) -> list[CudaDevice]:
    """The devices that CUDA, or HIP, would see, in its order; empty if no driver answers or all are hidden.

    Asks NVML, without it AMD SMI, so no context is made. Raises NoDeviceError if several different GPUs are numbered by
    CUDA's own "fastest first" order, which NVML does not know.
    """
    environment = os.environ if environment is None else environment
    if nvml.why_absent():
        return [CudaDevice(name, uuid) for name, uuid in amd.gpus(environment)]
    whole = [_describe(handle) for handle in nvml.handles()]
    instances = [[_describe(instance) for instance in nvml.mig_instances(handle)] for handle in nvml.handles()]
    in_bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return _visible(whole, instances, environment.get("CUDA_VISIBLE_DEVICES"), in_bus_order)


def _visible(
    gpus: list[CudaDevice], instances: list[list[CudaDevice]], visible: str | None, in_bus_order: bool
) -> list[CudaDevice]:
    """CUDA's rules: a list of indices or UUID prefixes, cut off at the first that is not valid."""
    # A GPU in MIG mode is only seen through its instances, and without a list only through the first.
    seen = [own[0] if own else gpu for gpu, own in zip(gpus, instances, strict=True)]
    entries = list(map(str, range(len(seen)))) if visible is None else [each.strip() for each in visible.split(",")]
    chosen = []
    for entry in entries:
        if entry.isdigit() and int(entry) < len(seen):
            if not in_bus_order and len(names := {device.name for device in seen}) > 1:
                raise NoDeviceError(
                    f"there are different GPUs here ({', '.join(sorted(names))}), and CUDA numbers them fastest first: "
                    "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or CUDA_VISIBLE_DEVICES to a UUID (nvidia-smi -L lists them)"
                )
            chosen.append(seen[int(entry)])
            continue
        is_uuid = entry.startswith(("GPU-", "MIG-"))
        matching = [each for each in (*gpus, *itertools.chain(*instances)) if is_uuid and each.uuid.startswith(entry)]
        if len(matching) != 1:
            break
        chosen += matching
    return chosen


def _describe(handle: object) -> CudaDevice:
    name = nvml.optional(pynvml.nvmlDeviceGetName, handle) or "nvidia"
    return CudaDevice(name, nvml.optional(pynvml.nvmlDeviceGetUUID, handle) or "")


def _why_no_torch_cuda() -> str:
    """Reason why the installed torch cannot use a GPU, from its version alone: importing it takes seconds."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "torch is not installed"
    return f"torch {version} is built for CPUs alone" if version.endswith("+cpu") else ""


def _why_no_gpu() -> str:
    if (nvidia := nvml.why_absent()) and amd.why_absent():
        return f"{nvidia}; of AMD's, {amd.why_absent()}"
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    hidden = " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    return f"{hidden or 'the driver'} leaves no GPU to be seen"
