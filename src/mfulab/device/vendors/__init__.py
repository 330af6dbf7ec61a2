"""GPU vendors, one module each, found through the subclasses of `Vendor`. A CPU's runs do not
depend on them, so an edit here does not re-run them."""

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
from mfulab.device.samplers.reading import Now, Probe, Reading, Sampler, Watched, sampler

if TYPE_CHECKING:
    import torch

AT_END = {"utilization_percent": "%", "other_processes": "", "device_memory_bytes": "B"}
AT_END |= {"clock_mhz": "MHz", "temperature_c": "°C"}


@sampler
def at_end(line: Callable[[], Mapping[str, float | None]], source: str, reason: Said) -> Watched:
    """Values of `line` at the end of the window, for drivers without means over it. `reason` says
    why some are empty."""
    yield
    now = line()
    source = f"{source} at the window's end"
    return {name: Reading(now[name], unit, source, reason=reason) for name, unit in AT_END.items()}


class NoDeviceError(ConfigurationError, ValueError):
    """Raised if the requested device is ambiguous or missing. The message says what to do."""


class RefusedError(SaidError):
    """Raised if a vendor's library does not return a value. The message names the call and the
    reason."""


@dataclass(frozen=True)
class GpuProperties:
    """Properties that determine a GPU's peaks, as the driver reports them. Clocks are in MHz,
    `bus_bits` is the memory bus width in bits."""

    name: str
    sms: int | None
    max_sm_clock_mhz: float | None
    max_memory_clock_mhz: float | None = None
    bus_bits: int | None = None
    pci_id: str | None = None


@dataclass(frozen=True)
class Gpu:
    """GPU, or one MIG instance of a GPU, that torch would see. `uuid` is its identifier in its
    vendor's module."""

    name: str
    uuid: str


@dataclass(frozen=True)
class Link:
    """Width of a GPU's link to the host or to other GPUs, now and at most."""

    now: float
    most: float


class Memory:
    """Peak memory of torch's caching allocator, beyond what was allocated when this object was
    created."""

    def __init__(self, device: "torch.device") -> None:
        import torch

        self._device, self._torch = device, torch.get_device_module(device)
        self.forget()
        self._baseline = self._torch.memory_allocated(device)

    def forget(self) -> None:
        """Resets the peak to the current allocation."""
        self._torch.reset_peak_memory_stats(self._device)

    def read(self) -> Reading:
        """Reading of the peak so far, in bytes."""
        held = self._torch.max_memory_allocated(self._device) - self._baseline
        return Reading(held, "B", f"{self._device.type.upper()} caching allocator, peak allocated")


class Vendor(ABC):
    """Interface of a vendor's module. Methods take a torch.device, or the identifier that `gpus`
    assigns to a GPU."""

    KIND: str  # torch's name of the vendor's devices
    PREFIX: str  # prefix of identifiers; empty for the vendor of all other identifiers
    SLUG: str  # regular expression that matches the start of its devices' slugs
    SOURCE: str  # source of its readings
    IS_AUTOMATIC = True  # whether device=auto may select its GPUs
    FORMATS: tuple[str, ...] = ()  # number formats that torch supports on its GPUs; empty: all
    HAS_TF32 = True

    @abstractmethod
    def owns(self, device: "torch.device") -> bool:
        """True if a torch.device is of this vendor."""

    @abstractmethod
    def why_absent(self) -> Said | None:
        """Reason why the vendor's library cannot be used; None if it answers."""

    @abstractmethod
    def gpus(self, environment: Mapping[str, str]) -> list[Gpu]:
        """GPUs that torch would see with these environment variables, in torch's order. Does not
        create a context."""

    @abstractmethod
    def why_unusable(self, uuid: str) -> Said | None:
        """Reason why torch cannot compute on a GPU that is present; None if it can. Imports
        torch."""

    @abstractmethod
    def uuid_of(self, device: "torch.device") -> str:
        """Identifier of a torch.device."""

    @abstractmethod
    def samplers(
        self, uuid: str, between: Sequence[Sampler], now: Now = time.perf_counter
    ) -> list[Sampler]:
        """Samplers for a window, the most direct first, with `between` before those read at its
        end. Raises RefusedError if the library does not know the GPU."""

    @abstractmethod
    def probe(self, uuid: str, own: int | None) -> Probe:
        """Returns a function that reads the device now; values that the driver refuses are None.
        `own` is the process that does not count among `other_processes`."""

    @abstractmethod
    def properties(self, uuid: str, name: str, sms: int | None = None) -> GpuProperties:
        """Properties that determine peaks, None if not reported. `sms` is the number of SMs or
        compute units, if known."""

    @abstractmethod
    def describe_all(self) -> list[dict[str, Any]]:
        """Columns of the environment table for each GPU of this machine. Empty without the vendor's
        library."""

    def why_silent(self) -> Said | None:
        """Reason why a loaded driver shows no GPU. None if no driver is loaded, or the user hides
        the GPUs."""
        return None

    def why_unfit(self, uuid: str) -> Said | None:
        """Reason why the installed torch cannot compute on a GPU. None if no reason is known
        without importing torch."""
        return None

    def visible(self, uuids: Sequence[str]) -> dict[str, str]:
        """Environment variable that makes only these GPUs visible. Empty if a machine can have only
        one."""
        return {}

    def clock_reader(self, uuid: str) -> Callable[[], float | None]:
        """Returns a function that reads the current clock in MHz, or None if it is not reported."""
        return lambda: None

    def restriction(self, uuid: str) -> str:
        """`MIG instance` or `vGPU` if the GPU is one, else empty."""
        return ""

    def capability(self, uuid: str) -> tuple[int, int] | None:
        """Compute capability; None if the vendor has none."""
        return None

    def links(self, uuid: str) -> dict[str, Link]:
        """Links of a GPU to its host and to other GPUs, by name. Omits those that are not
        reported."""
        return {}

    def memory_bytes(self, uuid: str) -> float | None:
        """Memory of a GPU in bytes; None if not reported."""
        return next(
            (
                facts.get("memory_bytes")
                for facts in self.describe_all()
                if facts.get("uuid") == uuid
            ),
            None,
        )

    def driver(self) -> str | None:
        """Version of the driver; None if there is no driver."""
        return None

    def name_and_units(self, device: "torch.device") -> tuple[str, int | None]:
        """Name of a torch.device, and its number of SMs or compute units if torch reports it."""
        import torch

        facts = torch.cuda.get_device_properties(device)
        return facts.name, facts.multi_processor_count

    def last_cache_bytes(self, device: "torch.device") -> int:
        """Size in bytes of the last-level cache, or an upper limit of it: what exceeds it is read
        from memory."""
        import torch

        return int(torch.cuda.get_device_properties(device).L2_cache_size)

    def certain_cache_bytes(self, device: "torch.device") -> int:
        """Size in bytes that the last-level cache holds at least."""
        return self.last_cache_bytes(device)

    def memory(self, device: "torch.device") -> Memory:
        """Starts to track the peak memory of a torch.device."""
        return Memory(device)


@cache
def makers() -> tuple[Vendor, ...]:
    """One instance of each vendor. The vendor without a prefix is last, as it matches every
    identifier."""
    for _, name, _ in pkgutil.iter_modules(__path__):
        import_module(f"mfulab.device.vendors.{name}")
    return tuple(
        sorted(
            (vendor() for vendor in Vendor.__subclasses__()), key=lambda vendor: not vendor.PREFIX
        )
    )


def of(uuid: str) -> Vendor:
    """Vendor of a GPU, from its identifier."""
    return next(vendor for vendor in makers() if uuid.startswith(vendor.PREFIX))


def of_device(device: "torch.device") -> Vendor:
    """Vendor of a torch.device."""
    return next(vendor for vendor in makers() if vendor.owns(device))


def of_kind(kind: str) -> list[Vendor]:
    """Vendors of a device kind. The vendor without a prefix is first."""
    return [vendor for vendor in reversed(makers()) if kind == vendor.KIND]


def kinds() -> list[str]:
    """Device kinds of all vendors, without duplicates."""
    return list(dict.fromkeys(vendor.KIND for vendor in makers()))


def choices() -> list[str]:
    """Device types that a command accepts. `auto` uses a GPU if one is usable."""
    return ["auto", "cpu", *kinds()]
