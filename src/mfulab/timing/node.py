"""Checks one device of a node in under a minute: matmuls of each format, memory, copies to a GPU,
clock and throttling."""

from collections.abc import Iterator
from contextlib import nullcontext
from statistics import fmean

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.printing import say
from mfulab.core.said import Said
from mfulab.device import GPU, ByKind, is_gpu, vendors
from mfulab.device.compute import emulated, matmuls_in
from mfulab.device.samplers.reading import Reading, Readings, first_available, sampling
from mfulab.device.samplers.selection import samplers_for
from mfulab.timing.best_matmul import (
    QUICK,
    Search,
    best_bandwidth,
    fastest_matmul,
    sweep_matmuls,
    sweep_triad,
)
from mfulab.timing.transfers import median_wall_s, time_transfers

FORMATS = ByKind(cpu=("fp32", "bf16"), gpu=("fp32", "tf32", "bf16", "fp16", "fp8"))
# Two shapes per format, with the fastest way.
SEARCH = ByKind(
    cpu=Search([(1024, 1024, 1024), (2048, 2048, 2048)], 3.0, 0.05, ways=1, triads=5), gpu=QUICK
)
TRIADS_S = 5.0  # starts no memory sample after this, in case neighbours slow the machine
COPIES = 20  # between two GPUs
SIDE = 8192  # of the bf16 matrices that are copied to a GPU and back
NEIGHBOURS = "other_processes_percent"  # of the CPU time during the measurement
THROTTLES = (
    "software_thermal_percent",
    "hardware_thermal_percent",
    "power_brake_percent",
    "power_capped_percent",
)


def readings_of(device: torch.device) -> Readings:
    """Measures a device's current rates, by column name. What the device cannot do is empty, with
    the reason."""
    with sampling(samplers_for(device)) as watched:
        readings = dict(_products(device))
    rate = best_bandwidth(sweep_triad(device, SEARCH[device.type], TRIADS_S), device)
    readings["memory_gb_s"] = Reading(rate, "GB/s", "triad")
    told = first_available(watched)
    beside = THROTTLES if is_gpu(device) else (NEIGHBOURS,)
    readings |= {name: told[name] for name in beside if name in told}
    if device.type == GPU:
        readings |= _copies(device)
    return readings


def _copies(device: torch.device) -> Readings:
    """Rates of copies to a GPU and back."""
    arrays = [torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=device) for _ in range(2)]
    seconds = time_transfers(arrays, arrays[0])
    size = arrays[0].nbytes
    to_device = 2 * size / seconds["host_to_device_pinned_s"] / 1e9
    to_host = size / seconds["device_to_host_pinned_s"] / 1e9
    return {
        "host_to_device_gb_s": Reading(to_device, "GB/s", "pinned memory"),
        "device_to_host_gb_s": Reading(to_host, "GB/s", "pinned memory"),
    }


def tell_copies() -> None:
    """Prints the GB/s of copies from the second visible GPU to the first. For a process of its own,
    since a check sees one card."""
    here, other = (torch.device(GPU, index) for index in range(2))
    source = torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=other)
    target = torch.empty_like(source, device=here)
    copy_s = median_wall_s(lambda: target.copy_(source), here, COPIES)
    say(f"{source.nbytes / copy_s / 1e9}")


def links_of(device: torch.device) -> dict[str, vendors.Link]:
    """Links of a GPU to its host and to other GPUs; empty for a CPU. To be read right after copies,
    as idle links drop to a lower speed."""
    if not is_gpu(device):
        return {}
    vendor = vendors.of_device(device)
    return vendor.links(vendor.uuid_of(device))


def _products(device: torch.device) -> Iterator[tuple[str, Reading]]:
    clocks: list[float] = []
    for name in FORMATS[device.type]:
        reason: Said | None = emulated(name, device)
        best = None
        if not reason:
            try:
                with matmuls_in(name) if is_gpu(device) else nullcontext():
                    samples = sweep_matmuls(name, device, SEARCH[device.type])
                best = fastest_matmul(samples, device)
                clocks += [mhz for sample in samples if (mhz := sample.get("clock_mhz"))]
            except UnsupportedError as error:
                reason = error.said
        reading = Reading(None, "TFLOP/s", "torch", None, reason)
        if best:
            reading = Reading(best.tflop_s, "TFLOP/s", best.library)
        yield f"{name}_tflop_s", reading
    if is_gpu(device):
        source = "during the products"
        clock = Reading(None, "MHz", source, None, Said("driver_does_not_tell"))
        if clocks:
            clock = Reading(fmean(clocks), "MHz", source)
        yield "clock_mhz", clock
