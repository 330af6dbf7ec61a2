"""GPUs by vendor: one module each in this folder, which answers the questions of `Vendor`.

A module is found by its `KIND`; no list names it. What is measured on a CPU depends on none of them: an edit here
measures no CPU again.
"""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from mfulab.device.samplers.reading import Reading, Sampler, Watched, sampler

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


class NoDeviceError(ValueError):
    """The device that was asked for is ambiguous or missing; the message says what to do."""


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


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of it, that torch would see; its vendor's module knows it by `uuid`."""

    name: str
    uuid: str


class Memory:
    """Peak of torch's caching allocator on a device, beyond what was allocated when this was made."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device, self._torch = device, torch.get_device_module(device)
        self.forget()
        self._baseline = self._torch.memory_allocated(device)

    def forget(self) -> None:
        """Begins anew: the peak is from now on."""
        self._torch.reset_peak_memory_stats(self._device)

    def read(self) -> Reading:
        """The peak in bytes so far."""
        held = self._torch.max_memory_allocated(self._device) - self._baseline
        return Reading(held, "B", f"{self._device.type.upper()} caching allocator, peak allocated")


class Vendor(Protocol):
    """Questions that a vendor's module answers: of the identifier that `gpus` gives a GPU, or of a torch.device."""

    KIND: str  # torch's name of the vendor's devices
    PREFIX: str  # how identifiers begin; empty for the vendor of all others
    SLUG: str  # regular expression of the slugs of its devices
    IS_AUTOMATIC: bool  # whether device=auto takes its GPUs
    FORMATS: tuple[str, ...]  # number formats that torch computes in on them; empty: all
    HAS_TF32: bool

    def owns(self, device: Any) -> bool:
        """True for a torch.device of this vendor."""

    def why_absent(self) -> str | None:
        """Reason why no GPU of the vendor can be asked; empty or None where its library answers."""

    def gpus(self, environment: Mapping[str, str]) -> list[Gpu]:
        """The GPUs that torch would see in this environment, in its order."""

    def why_silent(self) -> str:
        """Reason why a driver that is loaded shows no GPU; empty where none is, or the user hides them."""

    def why_unfit(self, uuid: str) -> str:
        """Reason why the installed torch cannot compute on a GPU; empty where none is known without importing it."""

    def why_unusable(self, uuid: str) -> str:
        """Reason why torch cannot compute on a GPU that is there; empty where it can. Imports torch."""

    def visible(self, uuids: Sequence[str]) -> dict[str, str]:
        """The variable that shows these GPUs alone."""

    def uuid_of(self, device: Any) -> str:
        """The identifier of a torch.device."""

    def samplers(self, uuid: str, between: Sequence[Sampler]) -> list[Sampler]:
        """Samplers of a window, the strictest first."""

    def probe(self, uuid: str, own: int | None) -> Callable[[], dict[str, float | None]]:
        """A function that reads the device now, for the time series."""

    def clock_reader(self, uuid: str) -> Callable[[], float | None]:
        """A function that reads the clock in MHz now; None where it is not told."""

    def restriction(self, uuid: str) -> str:
        """`MIG instance`, `vGPU`, or nothing."""

    def properties(self, uuid: str, name: str, sms: int | None = None) -> GpuProperties:
        """Properties that decide peaks."""

    def capability(self, uuid: str) -> tuple[int, int] | None:
        """Compute capability, where the vendor has one."""

    def describe_all(self) -> list[dict[str, object]]:
        """Columns of the environment's table for each GPU of this machine."""

    def driver(self) -> str | None:
        """The driver's version."""

    def name_and_units(self, device: Any) -> tuple[str, int | None]:
        """Name of a torch.device and its number of SMs or compute units, where torch tells it."""

    def last_cache_bytes(self, device: Any) -> int:
        """Bytes of the last cache before the memory."""

    def memory(self, device: Any) -> "Memory":
        """Watches the peak of memory on a torch.device from now on."""


@cache
def modules() -> tuple[Vendor, ...]:
    """Every vendor's module; the one without a prefix, which knows all other identifiers, comes last."""
    names = [name for _, name, _ in pkgutil.iter_modules(__path__)]
    found = [import_module(f"mfulab.device.vendors.{name}") for name in names]
    return tuple(sorted((module for module in found if hasattr(module, "KIND")), key=lambda module: not module.PREFIX))


def of(uuid: str) -> Any:
    """The module of a GPU's vendor, by the identifier that `gpus` gives it."""
    return next(vendor for vendor in modules() if uuid.startswith(vendor.PREFIX))


def of_device(device: Any) -> Any:
    """The module of the vendor of a torch.device."""
    return next(vendor for vendor in modules() if vendor.owns(device))


def of_kind(kind: str) -> list[Vendor]:
    """Modules of the vendors of a kind; the one without a prefix comes first."""
    return [vendor for vendor in reversed(modules()) if kind == vendor.KIND]


def kinds() -> list[str]:
    """Kinds of GPUs, each once."""
    return list(dict.fromkeys(vendor.KIND for vendor in modules()))
