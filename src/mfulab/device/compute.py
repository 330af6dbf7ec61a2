"""The torch device of a run, made ready: threads and precision switches set; the rank that speaks
for a job."""

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
    """The device, its allocator settled unless told not to, and the CPU threads; NoDeviceError for
    an unusable GPU."""
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
    """The CPU cores that this process's threads can fill: the whole of which its CPU time is a
    share."""
    return min(torch.get_num_threads(), cpu.usable_cores())


def effective_precision(precision: PrecisionConfig, device: torch.device) -> str:
    """The format that matmuls use: autocast's, or TF32 where allowed. UnsupportedError where the
    device lacks it."""
    name = BY_DTYPE[precision.dtype].name
    formats = _formats(device)
    if formats and name not in formats:
        numbers = {"device": device.type, "formats": ", ".join(formats)}
        reason = Said("computes_in", numbers)
        raise UnsupportedError(of_source(f"precision={precision.name}", reason))
    if name == "fp32" and precision.tf32 and not emulated("tf32", device):
        return "tf32"
    return name


def require_float64(device: torch.device) -> None:
    """Raises UnsupportedError for a device that has no float64 to compare a profile's losses with."""
    if (formats := _formats(device)) and "fp64" not in formats:
        reason = Said("no_float64", {"device": device.type})
        raise UnsupportedError(of_source("profile.exact and profile.losses", reason))


def _formats(device: torch.device) -> tuple[str, ...]:
    """The number formats of a GPU whose vendor lists them; empty where torch has all."""
    return vendors.of_device(device).FORMATS if is_gpu(device) else ()


def use_precision(precision: PrecisionConfig, device: torch.device) -> str:
    """Sets torch's switches, and gives the format that matmuls now use; UnsupportedError where the
    device lacks it."""
    effective = effective_precision(precision, device)
    if precision.tf32 and effective != "tf32":
        raise UnsupportedError(Said("tf32_needs_nvidia"))
    allow_tf32(precision.tf32)
    return effective


def allowed_precision(dtype: torch.dtype, device: torch.device, convolutions: bool) -> str:
    """The format that matmuls of `dtype`, or convolutions, use as torch's switches stand: one
    switch for each."""
    name = format_name(str(dtype).removeprefix("torch.")) or "fp32"
    switch = torch.backends.cudnn.conv if convolutions else torch.backends.cuda.matmul  # type: ignore[attr-defined]
    if name == "fp32" and switch.fp32_precision == "tf32" and not emulated("tf32", device):
        return "tf32"
    return name


def emulated(precision: str, device: torch.device) -> Said | None:
    """Says why `device` emulates a format, converting its operands; None where it computes it."""
    if is_gpu(device):
        if precision == "tf32" and not vendors.of_device(device).HAS_TF32:
            return Said("tf32_is_nvidias")
        return emulated_by_gpu(precision, gpu.capability_of(device))
    return emulated_by_cpu(precision)


def allow_tf32(allowed: bool) -> None:
    """Sets torch's switches for TF32 by their older names, as its compiler raises where these
    contradict the newer."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextlib.contextmanager
def matmuls_in(precision: str) -> Iterator[None]:
    """Makes float32 matmuls TF32 or not, as `precision` says, convolutions untouched; restores the
    switch after it."""
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


def is_first_rank() -> bool:
    """True if this process speaks for its job: the only one, or rank 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"


def agreed(value: float) -> float:
    """The largest of all processes' values; the value itself without others."""
    if not dist.is_available() or not dist.is_initialized():
        return value
    shared = torch.tensor(
        value, dtype=torch.float64, device=GPU if dist.get_backend() == "nccl" else "cpu"
    )
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return float(shared)
