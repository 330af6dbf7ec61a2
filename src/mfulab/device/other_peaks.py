"""Peaks that other installed libraries take for a device, each by its own lookup, without the device."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest.mock import patch

from mfulab.device.datasheets import Datasheet

# Gives dense TFLOP/s of a device, in a format of ours, or None; `memory` is bandwidth in 10⁹ byte/s.
Answer = float | None
Ask = Callable[[str, Datasheet, str], Answer]
MEMORY = "memory"


def torch_inductor(device: str, sheet: Datasheet, precision: str) -> Answer:
    """torch._inductor.analysis.device_info: by name, divided by its own sparsity factor as `datasheet_tops` does."""
    info = import_module("torch._inductor.analysis.device_info").lookup_device_info(device)
    if info is None or precision == MEMORY:
        return info and info.dram_bw_gbs
    key = "torch.tf32" if precision == "tf32" else _dtype(precision)
    tops = info.tops.get(key)
    return None if tops is None else tops / info.tops_sparsity_factor


def lightning(device: str, sheet: Datasheet, precision: str) -> Answer:
    """lightning.fabric.utilities.throughput.get_available_flops, told that CUDA's device has this name."""
    module = import_module("lightning_fabric.utilities.throughput")
    torch = import_module("torch")
    if precision == MEMORY:
        return None
    key = {"tf32": "tfloat32"}.get(precision) or _dtype(precision)
    with (
        patch.object(torch.cuda, "get_device_name", lambda *_: device),
        patch.object(module, "rank_zero_warn", lambda *_, **__: None),
        patch("lightning_fabric.accelerators.cuda._is_ampere_or_later", lambda *_: False),
    ):
        try:
            found = module.get_available_flops(torch.device("cuda"), key)
        except IndexError:  # it takes names apart by their spaces
            return None
    return None if found is None else found / 1e12


def triton_proton(device: str, sheet: Datasheet, precision: str) -> Answer:
    """triton.profiler.specs: by architecture, number of SMs and clock, which its profiler reads from the device."""
    specs = import_module("triton.profiler.specs")
    width = {"fp8": 8, "int8": 8, "fp16": 16, "bf16": 16, "tf32": 32, "fp32": 32, "fp64": 64}.get(precision)
    kind = {"NVIDIA": "CUDA", "AMD": "HIP"}.get(sheet.vendor)
    arch = sheet.architecture.replace(".", "")
    clock_khz = (sheet.boost_mhz or 0) * 1e3
    if width is None or kind is None or not sheet.units or not clock_khz:
        return None
    try:
        return specs.max_flops(kind, arch, width, sheet.units, clock_khz) / 1e12
    except (ValueError, KeyError):
        return None


@dataclass(frozen=True)
class Library:
    """A library with a table of peaks, and how it is asked."""

    ask: Ask
    by_name: bool = True  # it looks devices up by name
    also: tuple[tuple[str, str], ...] = ()  # names of its table that no driver tells, each with the product it is of


LIBRARIES = {
    "torch_inductor": Library(
        torch_inductor,
        also=(("NVIDIA H100", "H100 SXM5 80GB"), ("NVIDIA A100", "A100 SXM4 80GB"), ("AMD MI300A", "Instinct MI300A")),
    ),
    "lightning": Library(lightning),
    "triton_proton": Library(triton_proton, by_name=False),
}


def _dtype(precision: str) -> Any:
    names = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e5m2"}
    return getattr(import_module("torch"), {**names, "int8": "int8"}.get(precision, ""), None)
