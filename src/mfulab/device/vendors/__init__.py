"""GPUs by vendor: one module each, which answers the same questions of a GPU that `identity` lists.

Functions of such a module: `samplers`, `probe`, `clock_reader`, `restriction`, `properties`, `capability`,
`describe_all` and `driver`. What is measured on a CPU depends on none of them: an edit here measures no CPU again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mfulab.device.samplers.reading import Reading, Watched, sampler

AT_END = {
    **{"utilization_percent": "%", "other_processes": "", "device_memory_bytes": "B"},
    **{"clock_mhz": "MHz", "temperature_c": "°C"},
}


@sampler
def at_end(line: Callable[[], Mapping[str, float | None]], source: str, reason: str) -> Watched:
    """Values of a vendor's `line` at the end of the window, for lack of means over it; `reason`: why some are empty."""
    yield
    now, source = line(), f"{source} at the window's end"
    return {name: Reading(now[name], unit, source, reason=reason) for name, unit in AT_END.items()}


class RefusedError(Exception):
    """A value that a vendor's library did not give; the message says which call and why."""


@dataclass(frozen=True)
class GpuProperties:
    """Properties that decide a GPU's peaks, as the driver reports them. Clocks in MHz; `bus_bits`: memory bus width."""

    name: str
    sms: int | None
    max_sm_clock_mhz: float | None
    max_memory_clock_mhz: float | None = None
    bus_bits: int | None = None
    pci_id: str | None = None


def of(uuid: str) -> Any:
    """The module of a GPU's vendor, by the identifier that `identity.cuda_devices` gives it."""
    from mfulab.device.vendors import amd, apple, nvidia

    return next((vendor for vendor in (amd, apple) if uuid.startswith(vendor.PREFIX)), nvidia)
