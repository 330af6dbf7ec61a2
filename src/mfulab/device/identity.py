"""Identity of the device: the slug that names its results, and the GPUs that torch would see.
Planning imports it."""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from mfulab.core.said import Said, joined, of_source
from mfulab.device import GPU, cpu, is_gpu, unmeasured, vendors
from mfulab.device.vendors import Gpu, NoDeviceError, torch_build


def resolve(device_type: str) -> str:
    """The kind to measure: `auto` is the first usable GPU that it takes, else the CPU.
    NoDeviceError if unusable."""
    check(device_type)
    for kind in _automatic() if device_type == "auto" else [device_type]:
        if is_gpu(kind) and not (reason := why_not(kind)):
            return kind
    if is_gpu(device_type):
        raise NoDeviceError(f"device={device_type}: {reason}; choose device=cpu or device=auto")
    return "cpu"


def unused() -> Said | None:
    """Says which GPU `device=auto` leaves, and why; None where it takes one, where none is, or the
    user hides them."""
    with suppress(NoDeviceError):  # which whoever asks for a GPU is told
        for kind in _automatic():
            if devices := gpus(kind):
                reason = why_not(kind)
                return of_source(devices[0].name, reason) if reason else None
    return _why_silent(vendors.makers()) or unmeasured.found()


def _why_silent(asked: Iterable[vendors.Vendor]) -> Said | None:
    """The first reason of a vendor whose driver is loaded and shows no GPU."""
    return next(filter(None, (vendor.why_silent() for vendor in asked)), None)


def _automatic() -> list[str]:
    return list(dict.fromkeys(vendor.KIND for vendor in vendors.makers() if vendor.IS_AUTOMATIC))


def check(device_type: str) -> None:
    """Raises NoDeviceError for a kind that no vendor has."""
    choices = ("auto", "cpu", *vendors.kinds())
    if device_type not in choices:
        raise NoDeviceError(f"device.type={device_type}: no such kind; choose {', '.join(choices)}")


def gpus(kind: str = GPU, environment: Mapping[str, str] | None = None) -> list[Gpu]:
    """The GPUs of a kind that torch would see, in its order, those of the first vendor that has
    any."""
    environment = os.environ if environment is None else environment
    return next(filter(None, (vendor.gpus(environment) for vendor in vendors.of_kind(kind))), [])


def why_not(kind: str) -> Said | None:
    """Reason why torch would see no GPU of a kind; None where it would see one."""
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
        return Said("hidden_by", {"names": hidden})
    return _why_silent(of_kind) or Said("driver_leaves_none")


def hardware_slug(device_type: str = "auto") -> str:
    """The device's name as a folder: `nvidia-h100-80gb-hbm3`, or `amd-epyc-4c` with the cores that
    may be used."""
    if devices := gpus(resolve(device_type)):
        return slug(devices[0].name)
    return f"{slug(cpu.cpu().name)}-{cpu.usable_cores()}c"


def memory_bytes(kind: str) -> float | None:
    """Memory of the first GPU, or MIG instance, of a kind in bytes; None for a CPU, and where
    nobody tells."""
    uuid = next((gpu.uuid for gpu in gpus(kind)), "")
    return vendors.of(uuid).memory_bytes(uuid) if uuid else None


def slug(name: str) -> str:
    """`name` in lower case with hyphens, without trademarks, clocks and words that say nothing.

    >>> slug("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz")
    'intel-xeon-platinum-8481c'
    """
    name = re.sub(r"\((r|tm|c)\)|@.*$", " ", name.lower())
    name = re.sub(r"\b(cpu|processor|\d+-core|with .* graphics)\b", " ", name)
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "unknown"
