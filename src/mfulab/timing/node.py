"""One device of this node in under a minute: matmuls of each format, memory, the way to a GPU, clock and throttling."""

from collections.abc import Iterator
from contextlib import nullcontext
from statistics import fmean
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.device import GPU, ByKind, is_gpu
from mfulab.device.compute import emulated, matmuls_in
from mfulab.device.samplers.reading import Reading, Readings, first_available, sampling
from mfulab.device.samplers.selection import samplers_for
from mfulab.timing.best_matmul import QUICK, Search, best_bandwidth, fastest_matmul, sweep_matmuls, sweep_triad
from mfulab.timing.transfers import time_transfers

FORMATS = ByKind(cpu=("fp32", "bf16"), gpu=("fp32", "tf32", "bf16", "fp16", "fp8"))
# Two products a format, by the fastest ways.
SEARCH = ByKind(cpu=Search([(1024, 1024, 1024), (2048, 2048, 2048)], 1.5, 0.05, triads=10), gpu=QUICK)
SIDE = 8192  # of the matrices that go to a GPU and back, in bf16
THROTTLES = ("software_thermal_percent", "hardware_thermal_percent", "power_brake_percent", "power_capped_percent")


def readings_of(device: torch.device) -> Readings:
    """Reads what a device does now, by name with its unit; what it cannot do is empty and says why."""
    found: Readings = {}
    with sampling(samplers_for(device)) as watched:
        found |= dict(_products(device))
    found["memory_gb_s"] = Reading(best_bandwidth(sweep_triad(device, SEARCH[device.type]), device), "GB/s", "triad")
    if not is_gpu(device):
        return found
    told = first_available(watched)
    found |= {name: told[name] for name in THROTTLES if name in told}
    return found | (_transfers(device) if device.type == GPU else {})


def _products(device: torch.device) -> Iterator[tuple[str, Reading]]:
    clocks: list[float] = []
    for name in FORMATS[device.type]:
        column, reason = f"{name}_tflop_s", emulated(name, device)
        best = None
        if not reason:
            try:
                with matmuls_in(name) if is_gpu(device) else nullcontext():
                    samples = sweep_matmuls(name, device, SEARCH[device.type])
                best = fastest_matmul(samples, device)
                clocks += [each["clock_mhz"] for each in samples if each.get("clock_mhz")]
            except UnsupportedError as error:
                reason = str(error)
        yield column, Reading(best and best.tflop_s, "TFLOP/s", "torch" if best is None else best.library, None, reason)
    if is_gpu(device):
        reason = "" if clocks else "the driver does not tell it"
        yield "clock_mhz", Reading(fmean(clocks) if clocks else None, "MHz", "during the products", None, reason)


def _transfers(device: Any) -> Readings:
    """Bandwidth between pinned memory and the GPU."""
    made = [torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=device) for _ in range(2)]
    moved = made[0].nbytes
    seconds = time_transfers(made, made[0])
    rates = (2 * moved / seconds["host_to_device_pinned_s"], moved / seconds["device_to_host_pinned_s"])
    names = ("host_to_device_gb_s", "device_to_host_gb_s")
    return {name: Reading(rate / 1e9, "GB/s", "pinned memory") for name, rate in zip(names, rates, strict=True)}
