"""Prepares the torch device of a run: threads, precision switches, and the rank that reports for a
job."""

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from mfulab.core.errors import UnsupportedError
from mfulab.core.formats import BY_DTYPE, format_name
from mfulab.core.groups import DeviceConfig, PrecisionConfig
from mfulab.core.said import Said, of_source
from mfulab.device import GPU, cpu, gpu, identity, is_gpu, vendors
from mfulab.device.allocator import settle
from mfulab.device.emulation import emulated_by_cpu, emulated_by_gpu


def prepare(device: DeviceConfig, settled: bool = True) -> tuple[torch.device, int]:
    """Returns the torch device of a run and the number of CPU threads. Settles the C allocator
    unless `settled` is False. Raises NoDeviceError for an unusable GPU."""
    threads = device.threads or cpu.usable_cores()
    torch.set_num_threads(threads)
    if settled:
        settle()
    kind = identity.resolve(device.type)
    if is_gpu(kind) and (
        reason := vendors.of(uuid := identity.gpus(kind)[0].uuid).why_unusable(uuid)
    ):
        raise identity.NoDeviceError(f"device={device.type}: {reason}; choose device=cpu")
    return torch.device(kind), threads


def cores_filled() -> int:
    """Number of CPU cores that this process's torch threads can fill. CPU utilization is relative
    to it."""
    return min(torch.get_num_threads(), cpu.usable_cores())


def effective_precision(precision: PrecisionConfig, device: torch.device) -> str:
    """Number format that matmuls use: autocast's, or TF32 if allowed for float32. Raises
    UnsupportedError if the device does not support it."""
    name = BY_DTYPE[precision.dtype].name
    formats = _formats(device)
    if formats and name not in formats:
        reason = Said("computes_in", device=device.type, formats=", ".join(formats))
        raise UnsupportedError(of_source(f"precision={precision.name}", reason))
    if name == "fp32" and precision.tf32 and not emulated("tf32", device):
        return "tf32"
    return name


def require_float64(device: torch.device) -> None:
    """Raises UnsupportedError if the device has no float64, which a profile's losses are compared
    with."""
    if (formats := _formats(device)) and "fp64" not in formats:
        reason = Said("no_float64", device=device.type)
        raise UnsupportedError(of_source("profile.exact and profile.losses", reason))


def _formats(device: torch.device) -> tuple[str, ...]:
    """Number formats that torch supports on a GPU, if the vendor restricts them. Empty if torch
    supports all."""
    return vendors.of_device(device).FORMATS if is_gpu(device) else ()


def use_precision(precision: PrecisionConfig, device: torch.device) -> str:
    """Sets torch's precision switches and returns the format that matmuls now use. Raises
    UnsupportedError if the device does not support it."""
    effective = effective_precision(precision, device)
    if precision.tf32 and effective != "tf32":
        raise UnsupportedError(Said("tf32_needs_nvidia"))
    allow_tf32(precision.tf32)
    return effective


def allowed_precision(dtype: torch.dtype, device: torch.device, convolutions: bool) -> str:
    """Format that matmuls of `dtype`, or convolutions, use under torch's current switches. Each has
    its own switch for TF32."""
    name = format_name(str(dtype).removeprefix("torch.")) or "fp32"
    switch = torch.backends.cudnn.conv if convolutions else torch.backends.cuda.matmul  # type: ignore[attr-defined]
    if name == "fp32" and switch.fp32_precision == "tf32" and not emulated("tf32", device):
        return "tf32"
    return name


def emulated(precision: str, device: torch.device) -> Said | None:
    """Reason why `device` emulates a format by converting its operands. None if the hardware
    computes in it."""
    if is_gpu(device):
        has_tf32 = vendors.of_device(device).HAS_TF32
        return emulated_by_gpu(precision, gpu.capability_of(device), has_tf32)
    return emulated_by_cpu(precision)


def allow_tf32(allowed: bool) -> None:
    """Sets torch's TF32 switches through the older names, as torch.compile raises if old and new
    names disagree."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextlib.contextmanager
def matmuls_in(precision: str) -> Iterator[None]:
    """Uses TF32 for float32 matmuls inside the `with` block if `precision` is `tf32`, else full
    precision. Leaves convolutions alone and restores the switch."""
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


def has_ranks() -> bool:
    """True if this process is a rank of torch.distributed."""
    return dist.is_available() and dist.is_initialized()


def is_first_rank() -> bool:
    """True if this process reports for its job: rank 0, or the only process."""
    if has_ranks():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"


def agreed(value: float) -> float:
    """Maximum of a value over all ranks; the value itself without torch.distributed."""
    if not has_ranks():
        return value
    shared = torch.tensor(
        value, dtype=torch.float64, device=GPU if dist.get_backend() == "nccl" else "cpu"
    )
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return float(shared)
