"""GPUs by vendor: one module each in this folder, found by its subclass of `Vendor`; an edit
measures no CPU again."""

import pkgutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mfulab.core.errors import ConfigurationError
from mfulab.core.said import Said, SaidError
from mfulab.device.samplers.reading import Reading, Sampler, Watched, sampler

if TYPE_CHECKING:
    import torch

AT_END = {"utilization_percent": "%", "other_processes": "", "device_memory_bytes": "B"}
AT_END |= {"clock_mhz": "MHz", "temperature_c": "°C"}


@sampler
def at_end(line: Callable[[], Mapping[str, float | None]], source: str, reason: Said) -> Watched:
    """Values of a vendor's `line` at the end of the window, for lack of means over it; `reason`:
    why some are empty."""
    yield
    now = line()
    source = f"{source} at the window's end"
    return {name: Reading(now[name], unit, source, reason=reason) for name, unit in AT_END.items()}


class NoDeviceError(ConfigurationError, ValueError):
    """The device that was asked for is ambiguous or missing; the message says what to do."""


class RefusedError(SaidError):
    """A value that a vendor's library did not give; the message says which call and why."""


@dataclass(frozen=True)
class GpuProperties:
    """Properties that decide a GPU's peaks, as the driver reports them. Clocks in MHz; `bus_bits`:
    memory bus width."""

    name: str
    sms: int | None
    max_sm_clock_mhz: float | None
    max_memory_clock_mhz: float | None = None
    bus_bits: int | None = None
    pci_id: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of it, that torch would see; its vendor's module knows it by
    `uuid`."""

    name: str
    uuid: str


@dataclass(frozen=True)
class Link:
    """Width of a GPU's way to its host or to other GPUs: now, and at most."""

    now: float
    most: float


class Memory:
    """Peak of torch's caching allocator on a device, beyond what was allocated when this was
    made."""

    def __init__(self, device: "torch.device") -> None:
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


Now = Callable[[], float]


class Vendor(ABC):
    """Questions that a vendor's module answers: of the identifier that `gpus` gives a GPU, or of a
    torch.device."""

    KIND: str  # torch's name of the vendor's devices
    PREFIX: str  # how identifiers begin; empty for the vendor of all others
    SLUG: str  # regular expression of the slugs of its devices
    SOURCE: str  # what its readings come from
    IS_AUTOMATIC = True  # whether device=auto takes its GPUs
    FORMATS: tuple[str, ...] = ()  # number formats that torch computes in on them; empty: all
    HAS_TF32 = True

    @abstractmethod
    def owns(self, device: "torch.device") -> bool:
        """True for a torch.device of this vendor."""

    @abstractmethod
    def why_absent(self) -> Said | None:
        """Reason why no GPU of the vendor can be asked; None where its library answers."""

    @abstractmethod
    def gpus(self, environment: Mapping[str, str]) -> list[Gpu]:
        """The GPUs that torch would see in this environment, in its order. Makes no context."""

    @abstractmethod
    def why_unusable(self, uuid: str) -> Said | None:
        """Reason why torch cannot compute on a GPU that is there; None where it can. Imports
        torch."""

    @abstractmethod
    def uuid_of(self, device: "torch.device") -> str:
        """The identifier of a torch.device."""

    @abstractmethod
    def samplers(
        self, uuid: str, between: Sequence[Sampler], now: Now = time.perf_counter
    ) -> list[Sampler]:
        """Samplers of a window, the strictest first; raises RefusedError where the library does not
        know the GPU."""

    @abstractmethod
    def probe(self, uuid: str, own: int | None) -> Callable[[], dict[str, float | None]]:
        """A function that reads the device now; refused values are empty, and `own` is no other
        process."""

    @abstractmethod
    def properties(self, uuid: str, name: str, sms: int | None = None) -> GpuProperties:
        """Properties that decide peaks, None if hidden; `sms`: SMs or compute units where known."""

    @abstractmethod
    def describe_all(self) -> list[dict[str, Any]]:
        """Columns of the environment's table for each GPU of this machine; empty without its
        library."""

    def why_silent(self) -> Said | None:
        """Reason why a driver that is loaded shows no GPU; None where none is, or the user hides
        them."""
        return None

    def why_unfit(self, uuid: str) -> Said | None:
        """Reason why the installed torch cannot compute on a GPU; None where none is known without
        importing it."""
        return None

    def visible(self, uuids: Sequence[str]) -> dict[str, str]:
        """The variable that shows these GPUs alone; none for a machine's only one."""
        return {}

    def clock_reader(self, uuid: str) -> Callable[[], float | None]:
        """A function that reads the clock in MHz now; None where it is not told."""
        return lambda: None

    def restriction(self, uuid: str) -> str:
        """`MIG instance`, `vGPU`, or nothing."""
        return ""

    def capability(self, uuid: str) -> tuple[int, int] | None:
        """Compute capability, where the vendor has one."""
        return None

    def links(self, uuid: str) -> dict[str, Link]:
        """A GPU's ways to its host and to other GPUs, by name; those that are told."""
        return {}

    def memory_bytes(self, uuid: str) -> float | None:
        """Bytes of a GPU's memory; None where it is not told."""
        return next(
            (
                facts.get("memory_bytes")
                for facts in self.describe_all()
                if facts.get("uuid") == uuid
            ),
            None,
        )

    def driver(self) -> str | None:
        """The driver's version; None without one."""
        return None

    def name_and_units(self, device: "torch.device") -> tuple[str, int | None]:
        """Name of a torch.device and its number of SMs or compute units, where torch tells it."""
        import torch

        facts = torch.cuda.get_device_properties(device)
        return facts.name, facts.multi_processor_count

    def last_cache_bytes(self, device: "torch.device") -> int:
        """Bytes of the last cache before the memory."""
        import torch

        return int(torch.cuda.get_device_properties(device).L2_cache_size)

    def memory(self, device: "torch.device") -> Memory:
        """Watches the peak of memory on a torch.device from now on."""
        return Memory(device)


@cache
def makers() -> tuple[Vendor, ...]:
    """Every vendor; the one without a prefix, which knows all other identifiers, comes last."""
    for _, name, _ in pkgutil.iter_modules(__path__):
        import_module(f"mfulab.device.vendors.{name}")
    return tuple(
        sorted(
            (vendor() for vendor in Vendor.__subclasses__()), key=lambda vendor: not vendor.PREFIX
        )
    )


def of(uuid: str) -> Vendor:
    """The vendor of a GPU, by the identifier that `gpus` gives it."""
    return next(vendor for vendor in makers() if uuid.startswith(vendor.PREFIX))


def of_device(device: "torch.device") -> Vendor:
    """The vendor of a torch.device."""
    return next(vendor for vendor in makers() if vendor.owns(device))


def of_kind(kind: str) -> list[Vendor]:
    """Vendors of a kind; the one without a prefix comes first."""
    return [vendor for vendor in reversed(makers()) if kind == vendor.KIND]


def kinds() -> list[str]:
    """Kinds of GPUs, each once."""
    return list(dict.fromkeys(vendor.KIND for vendor in makers()))


def choices() -> list[str]:
    """Kinds of device that a command can be asked for; `auto` takes a GPU where one can be used."""
    return ["auto", "cpu", *kinds()]
