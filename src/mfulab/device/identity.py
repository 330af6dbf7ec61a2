"""Identity of the device: the slug that names its results, and the GPUs that torch would see.
Planning imports this module, so it does not import torch."""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from mfulab.core.said import Said, joined, of_source
from mfulab.device import GPU, cpu, is_gpu, unmeasured, vendors
from mfulab.device.vendors import Gpu, NoDeviceError, torch_build


def resolve(device_type: str) -> str:
    """Device kind to measure. `auto` selects the first usable kind of GPU, else the CPU. Raises
    NoDeviceError if the requested kind is not usable."""
    check(device_type)
    for kind in _automatic() if device_type == "auto" else [device_type]:
        if is_gpu(kind) and not (reason := why_not(kind)):
            return kind
    if is_gpu(device_type):
        raise NoDeviceError(f"device={device_type}: {reason}; choose device=cpu or device=auto")
    return "cpu"


def unused() -> Said | None:
    """Reason why `device=auto` does not use a GPU that is present. None if it uses one, or none is
    present or visible."""
    with suppress(NoDeviceError):  # reported when a GPU is requested
        for kind in _automatic():
            if devices := gpus(kind):
                reason = why_not(kind)
                return of_source(devices[0].name, reason) if reason else None
    return _why_silent(vendors.makers()) or unmeasured.found()


def _why_silent(asked: Iterable[vendors.Vendor]) -> Said | None:
    """First reason, over these vendors, why a loaded driver shows no GPU; None if no vendor has
    one."""
    return next(filter(None, (vendor.why_silent() for vendor in asked)), None)


def _automatic() -> list[str]:
    return list(dict.fromkeys(vendor.KIND for vendor in vendors.makers() if vendor.IS_AUTOMATIC))


def check(device_type: str) -> None:
    """Raises NoDeviceError for an unknown device type."""
    choices = ("auto", "cpu", *vendors.kinds())
    if device_type not in choices:
        raise NoDeviceError(f"device.type={device_type}: no such kind; choose {', '.join(choices)}")


def gpus(kind: str = GPU, environment: Mapping[str, str] | None = None) -> list[Gpu]:
    """GPUs of a kind that torch would see, in torch's order. They are those of the first vendor
    that has any."""
    environment = os.environ if environment is None else environment
    return next(filter(None, (vendor.gpus(environment) for vendor in vendors.of_kind(kind))), [])


def why_not(kind: str) -> Said | None:
    """Reason why torch cannot use a GPU of this kind; None if it can."""
    if devices := gpus(kind):
        fits = torch_build.installed() is not None
        if fits:
            return vendors.of(devices[0].uuid).why_unfit(devices[0].uuid)
        return Said("no_torch")
    of_kind = vendors.of_kind(kind)
    absent = [reason for vendor in of_kind if (reason := vendor.why_absent())]
    if len(absent) == len(of_kind):
        return joined(absent)
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    hidden = " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    if hidden:
        return Said("hidden_by", names=hidden)
    return _why_silent(of_kind) or Said("driver_leaves_none")


def hardware_slug(device_type: str = "auto") -> str:
    """Device name as a folder name, such as `nvidia-h100-80gb-hbm3`. A CPU's ends with its usable
    cores: `amd-epyc-4c`."""
    if devices := gpus(resolve(device_type)):
        return slug(devices[0].name)
    return f"{slug(cpu.cpu().name)}-{cpu.usable_cores()}c"


def memory_bytes(kind: str) -> float | None:
    """Memory in bytes of the first GPU or MIG instance of a kind. None for a CPU, or if not
    reported."""
    uuid = next((gpu.uuid for gpu in gpus(kind)), "")
    return vendors.of(uuid).memory_bytes(uuid) if uuid else None


def slug(name: str) -> str:
    """Lower-case name with hyphens, without trademarks, clocks and filler words.

    >>> slug("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")
    'intel-xeon-platinum-8481c'
    """
    name = re.sub(r"\((r|tm|c)\)|@.*$", " ", name.lower())
    name = re.sub(r"\b(cpu|processor|\d+-core|with .* graphics)\b", " ", name)
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "unknown"
